"""Binary responses of embeddings: raw bytes and a ``metadata`` header that describes them."""

import time
from collections.abc import Sequence

import msgspec
from starlette.types import Send

from octavo.api.json_answer import ENCODER
from octavo.api.pooling.encoding import to_bytes
from octavo.api.pooling.protocol import EncodingBody
from octavo.api.usage import Usage
from octavo.errors import InvalidRequestError
from octavo.outputs.pooling import Pooled

MAX_DESCRIBED = 256
"""Vectors that a header describes: a client need not take headers of more than some dozens of KiB."""


class _Place(msgspec.Struct):
    """Byte range, type and shape of one vector."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: list[int]


class _Metadata(msgspec.Struct):
    """The header ``metadata``."""

    id: str
    created: int
    model: str
    data: list[_Place]
    usage: Usage


def check_binary(body: EncodingBody, num_inputs: int) -> None:
    """Refuse a header that would be too long."""
    if body.encoding_format == "bytes" and num_inputs > MAX_DESCRIBED:
        raise InvalidRequestError(
            f"encoding_format 'bytes' describes at most {MAX_DESCRIBED} vectors in a header; send fewer inputs, or use "
            "'bytes_only'.",
            "encoding_format",
        )


async def send_binary(
    send: Send, body: EncodingBody, answer: str, model: str, outputs: Sequence[Pooled], usage: Usage
) -> None:
    """The vectors' bytes one after the other."""
    parts = [to_bytes(output.outputs.array, body.embed_dtype, body.endianness) for output in outputs]
    content = b"".join(parts)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(content)).encode())]
    if body.encoding_format == "bytes":
        places, start = [], 0
        for index, (part, output) in enumerate(zip(parts, outputs, strict=True)):
            shape = list(output.outputs.array.shape)
            places.append(_Place(index, body.embed_dtype, body.endianness, start, start + len(part), shape))
            start += len(part)
        metadata = ENCODER.encode(_Metadata(answer, int(time.time()), model, places, usage))
        # A header is Latin-1; the model's name may not be.
        headers.append((b"metadata", metadata.decode().encode("ascii", "backslashreplace")))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
