"""Messages between API processes and the engine process.

Every message is a tagged msgpack object. Decoding creates only the types below, so no message can run code. Prompts are
the bytes of their token ids: a long one costs the engine's loop a copy, not an object per token.
"""

from typing import Any

import msgspec
import numpy as np

from octavo.errors import InvalidRequestError
from octavo.records import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    SamplingParams,
    StepOutputs,
    token_ids_from_bytes,
)


class Follower(msgspec.Struct, array_like=True):
    """One more completion of a prompt: what differs from the first."""

    request_id: str
    seed: int


class Add(msgspec.Struct, tag="add"):
    """Queue requests, in order.

    Attributes:
        followers: further completions of the only request's prompt.
    """

    requests: list[EngineRequest]
    followers: list[Follower] = []

    @classmethod
    def of(cls, requests: list[EngineRequest]) -> "Add":
        """The message for requests; a prompt with many completions is sent only once."""
        if len(requests) > 1 and all(_follows(request, requests[0]) for request in requests[1:]):
            return cls(requests[:1], [Follower(request.request_id, request.seed) for request in requests[1:]])
        return cls(requests)

    def all_requests(self) -> list[EngineRequest]:
        """The requests from which the message was made."""
        if not self.followers:
            return self.requests
        (leader,) = self.requests
        params = leader.params
        if params.prompt_logprobs is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return [
            leader,
            *(
                msgspec.structs.replace(leader, request_id=follower.request_id, seed=follower.seed, params=params)
                for follower in self.followers
            ),
        ]


def _follows(request: EngineRequest, leader: EngineRequest) -> bool:
    """Whether a request is one more completion of the leader's prompt, and neither has output yet."""
    return (
        leader.request_id == leader.leader_id == request.leader_id
        and request.prompt_token_ids is leader.prompt_token_ids
        and not len(leader.output_token_ids)
        and not len(request.output_token_ids)
    )


class Abort(msgspec.Struct, tag="abort"):
    """End requests; unknown ids are ignored."""

    request_ids: list[str]


class ControlCall(msgspec.Struct, tag="call"):
    """Run one of the engine's control functions (see :class:`~octavo.engine.control.Control`) and reply."""

    call_id: int
    name: str
    arguments: dict[str, Any] = {}


class Ready(msgspec.Struct, tag="ready"):
    """The engine is loaded. Sent on every connection.

    Attributes:
        generation: number of the engine process in this server, from 1.
    """

    generation: int
    info: EngineInfo
    stats: EngineStats


class Failed(msgspec.Struct, tag="failed"):
    """The engine could not start.

    Attributes:
        is_setting: whether a setting or the model is wrong.
        is_final: whether no other engine will be started.
    """

    generation: int
    error: str
    is_setting: bool
    is_final: bool


class OutputBatch(msgspec.Struct, tag="batch"):
    """Outputs of a step for one frontend's requests."""

    generation: int
    outputs: StepOutputs
    stats: EngineStats


class ControlReply(msgspec.Struct, tag="reply"):
    """A control function's result or error."""

    call_id: int
    value: Any = None
    error: str | None = None


class _Id(msgspec.Struct):
    request_id: str


class _Ids(msgspec.Struct, tag="add"):
    """The part of an :class:`Add` that can be read even if a request's other fields are invalid."""

    requests: list[_Id]
    followers: list[Follower] = []


ToEngine = Add | Abort | ControlCall
FromEngine = Ready | Failed | OutputBatch | ControlReply

MAX_ENTRIES = 1 << 15
"""Maximum number of prompt log-probabilities per message: decoding millions at once would block for a second."""


def in_parts(outputs: StepOutputs) -> list[StepOutputs]:
    """Split a step's outputs into messages that each decode quickly.

    A long prompt's log-probabilities are split into several outputs of the request; the last one has all other fields.
    """
    parts: list[StepOutputs] = []
    for place, output in enumerate(outputs.others):
        rows = output.prompt_logprobs
        if not rows:
            continue
        num_rows = max(1, MAX_ENTRIES // len(rows[0].token_ids))
        while len(rows) > num_rows:
            parts.append(StepOutputs(others=[EngineOutput(output.request_id, prompt_logprobs=rows[:num_rows])]))
            rows = rows[num_rows:]
        outputs.others[place] = msgspec.structs.replace(output, prompt_logprobs=rows)
    return [*parts, outputs]


def _encode_token_ids(value: object) -> memoryview:
    """Token ids as their bytes; the other types of these messages are msgpack's own."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int32:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return np.ascontiguousarray(value).data.cast("B")


encode = msgspec.msgpack.Encoder(enc_hook=_encode_token_ids).encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine, dec_hook=lambda _, data: token_ids_from_bytes(data)).decode
_decode_ids = msgspec.msgpack.Decoder(_Ids).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def ids_in_unreadable(data: bytes) -> list[str]:
    """Ids of the requests in an ``Add`` message that cannot be decoded as a whole."""
    try:
        message = _decode_ids(data)
        return [one.request_id for one in message.requests] + [one.request_id for one in message.followers]
    except msgspec.MsgspecError:
        return []


def check_sendable(params: SamplingParams) -> None:
    """Check that free-form values can be sent to another process.

    Raises:
        InvalidRequestError: ``extra_args`` contains a type unknown to msgpack, or a number beyond 64 bits.
    """
    if params.extra_args is None:
        return
    try:
        msgspec.msgpack.encode(params.extra_args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"extra_args cannot be sent to the engine: {error}.", "extra_args") from None
