"""Vectors as bytes: types that clients may ask for, byte order, base64."""

import base64
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.types import Send

from octavo.api.pieces import ENCODER
from octavo.api.pooling.protocol import EmbedDType, EncodingBody, Endianness
from octavo.api.usage import Usage
from octavo.errors import InvalidRequestError
from octavo.outputs.pooling import Pooled

Vector = NDArray[np.float32]
MAX_DESCRIBED = 256
"""Vectors that a header describes: a client need not take headers of more than some dozens of KiB."""


def to_bytes(vector: Vector, dtype: EmbedDType, endianness: Endianness) -> bytes:
    """The numbers of an array, row after row.

    Values that an 8-bit type cannot hold become its largest.
    """
    numbers = _CONVERSIONS[dtype](vector)
    wanted = sys.byteorder if endianness == "native" else endianness
    if wanted != sys.byteorder:
        numbers = numbers.byteswap()
    return numbers.tobytes()


def to_base64(vector: Vector, dtype: EmbedDType, endianness: Endianness) -> str:
    """The same as text."""
    return base64.b64encode(to_bytes(vector, dtype, endianness)).decode("ascii")


def pack_bits(vector: Vector, *, is_signed: bool) -> list[int]:
    """One bit per dimension, whether it is positive, eight to a number; as Cohere's binary and ubinary."""
    packed = np.packbits(vector > 0).astype(np.int64)
    return (packed - 128 if is_signed else packed).tolist()


def _bfloat16(vector: Vector) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _float8(vector: Vector, exponent_bits: int) -> NDArray[np.uint8]:
    values = _float8_values(exponent_bits)
    magnitude = np.minimum(np.abs(vector), values[-1])
    middles = (values[1:] + values[:-1]) / 2
    code = np.searchsorted(middles, magnitude)
    # Half-way between two numbers, the one whose last bit is 0.
    is_tie = magnitude == middles[np.minimum(code, len(middles) - 1)]
    code = np.where(is_tie & (code % 2 == 1), code + 1, code).astype(np.uint8)
    return code | (np.signbit(vector).astype(np.uint8) << 7)


@cache
def _float8_values(exponent_bits: int) -> NDArray[np.float64]:
    """The finite positive numbers of an 8-bit type in the order of their codes (arXiv:2209.05433)."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(1 << 7)
    exponent, mantissa = codes >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    # E4M3 keeps its highest exponent for numbers, all but the last; E5M2's is for infinity and what is no number.
    return values[:-1] if exponent_bits == 4 else values[: -(1 << mantissa_bits)]


_CONVERSIONS: dict[EmbedDType, Callable[[Vector], NDArray[Any]]] = {
    "float32": lambda vector: vector,
    "float16": lambda vector: vector.astype(np.float16),
    "bfloat16": _bfloat16,
    "fp8_e4m3": lambda vector: _float8(vector, 4),
    "fp8_e5m2": lambda vector: _float8(vector, 5),
}


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
