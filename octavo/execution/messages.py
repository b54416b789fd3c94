"""Messages between the engine process and workers in other processes: tagged msgpack, arrays as their bytes.

Decoding creates only the types below, so no message can run code.
"""

import dataclasses
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo import errors, records
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, OctavoError, RequestFailedError
from octavo.records import Step

COLLECTIVE_METHODS = ("start", "wake_cache")
"""Methods in which the ranks wait for each other, so that none may fail and live on."""
_CLASS = "class"


class WorkerLaunch(msgspec.Struct):
    """What a worker process starts with.

    Attributes:
        settings: the engine's settings, adapted to the platform.
        plan: the plan to load the model by; see :func:`as_plain`.
        rank, size: the worker's number, and the number of workers.
        folder: updated weights; None for the model's own.
        store: the file through which the workers find each other.
    """

    settings: EngineConfig
    plan: Any
    rank: int
    size: int
    folder: str | None
    store: str


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """Start a step."""

    step: Step


class Draw(msgspec.Struct, tag="draw", array_like=True):
    """Draw the tokens of a step that was held.

    Attributes:
        masks: ``[M · width]``.
    """

    step_id: int
    masks: NDArray[np.int32]
    width: int


class WorkerCall(msgspec.Struct, tag="call", array_like=True):
    """Call a method of the worker and reply.

    Attributes:
        args: see :func:`as_plain`.
    """

    method: str
    args: list[Any]
    kwargs: dict[str, Any]


class WorkerReply(msgspec.Struct, array_like=True):
    """A method's result, or its error.

    Attributes:
        error: the message; None for a result.
        kind: the error's class in :mod:`octavo.errors`.
    """

    value: Any = None
    error: str | None = None
    kind: str = ""

    @classmethod
    def of_error(cls, error: Exception) -> "WorkerReply":
        """The reply that tells of an error."""
        if isinstance(error, OctavoError):
            return cls(error=str(error), kind=type(error).__name__)
        return cls(error=f"{type(error).__name__}: {error}", kind=RequestFailedError.__name__)

    def result(self) -> Any:
        """The value.

        Raises:
            OctavoError: the method did.
        """
        if self.error is None:
            return self.value
        kind = getattr(errors, self.kind, RequestFailedError)
        error = kind.__new__(kind)
        Exception.__init__(error, self.error)
        raise error


def as_plain(value: Any) -> Any:
    """Records of :mod:`octavo.records` inside an argument as mappings that name their class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {found.name: as_plain(getattr(value, found.name)) for found in dataclasses.fields(value) if found.init}
        return {_CLASS: type(value).__name__, **fields}
    return [as_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_plain(value: Any, *, is_field: bool = False) -> Any:
    """The argument of :func:`as_plain`.

    Args:
        is_field: sequences are fields of a record, where they are tuples; others are lists.
    """
    if isinstance(value, dict) and _CLASS in value:
        fields = {name: from_plain(found, is_field=True) for name, found in value.items() if name != _CLASS}
        return getattr(records, value[_CLASS])(**fields)
    if isinstance(value, list):
        items = [from_plain(item, is_field=is_field) for item in value]
        return tuple(items) if is_field else items
    return value


def _encode_array(value: object) -> memoryview:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return np.ascontiguousarray(value).data.cast("B")


def _decode_array(kind: Any, data: Any) -> NDArray[Any]:
    """An array of the annotated type, ``[N]``, which may be written to."""
    ((dtype,),) = (get_args(found) for found in get_args(kind)[1:])
    return np.frombuffer(bytearray(data), dtype)


encode = msgspec.msgpack.Encoder(enc_hook=_encode_array).encode


def encode_reply(value: Any) -> bytes:
    """A reply with a method's result.

    Raises:
        InvalidRequestError: the result is no plain data.
    """
    try:
        return encode(WorkerReply(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"The result cannot be sent to another process: {error}") from None


decode_to_worker = msgspec.msgpack.Decoder(Submit | Draw | WorkerCall, dec_hook=_decode_array).decode
decode_reply = msgspec.msgpack.Decoder(WorkerReply).decode
