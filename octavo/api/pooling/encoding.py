"""Vectors as bytes: types that clients may ask for, byte order, base64."""

import base64
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.api.pooling.protocol import EmbedDType, Endianness

Vector = NDArray[np.float32]


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
