"""Dequantises GGUF blocks."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.tokenization.gguf_file import GGUFTensor

_Bytes = NDArray[np.uint8]

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
SUPPORTED = ("F32", "F16", "BF16", *QUANTIZED)


def dequantize(rows: _Bytes, tensor: GGUFTensor) -> torch.Tensor:
    """Dequantise rows of a tensor of a type in :data:`SUPPORTED`; single-threaded.

    Args:
        rows: ``[R, bytes per row]``.

    Returns:
        ``[R, N]``, float32 for quantised types, else the stored type. It may share memory with ``rows``.
    """
    plain = _PLAIN.get(tensor.type_name)
    if plain is not None:
        stored = torch.from_numpy(rows.view(plain[0]))
        return stored if plain[1] is None else stored.view(plain[1])
    own = _OWN.get(tensor.type_name)
    if own is not None:
        return torch.from_numpy(own(rows).reshape(len(rows), -1))
    from gguf import quants
    from gguf.constants import GGMLQuantizationType

    return torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType(tensor.type_id)))


def _q4_0(rows: _Bytes) -> NDArray[np.float32]:
    """``scale · (q − 8)``; a block is a float16 scale and 32 four-bit numbers."""
    blocks = rows.reshape(-1, 18)
    values = _four_bits(blocks[:, 2:])
    values -= 8
    values *= _halves(blocks[:, :2])
    return values


def _q4_1(rows: _Bytes) -> NDArray[np.float32]:
    """``scale · q + minimum``; a block is two float16 values and 32 four-bit numbers."""
    blocks = rows.reshape(-1, 20)
    values = _four_bits(blocks[:, 4:])
    values *= _halves(blocks[:, :2])
    values += _halves(blocks[:, 2:4])
    return values


def _four_bits(packed: _Bytes) -> NDArray[np.float32]:
    """``[N, 16]`` bytes → ``[N, 32]`` numbers: all low nibbles, then all high ones."""
    numbers = np.empty((len(packed), 32), np.uint8)
    np.bitwise_and(packed, 15, out=numbers[:, :16])
    np.right_shift(packed, 4, out=numbers[:, 16:])
    return numbers.astype(np.float32)


def _halves(column: _Bytes) -> NDArray[np.float32]:
    """``[N, 2]`` bytes → ``[N, 1]``."""
    return np.ascontiguousarray(column).view(np.float16).astype(np.float32)


_PLAIN: dict[str, tuple[type[np.generic], torch.dtype | None]] = {
    "F32": (np.float32, None),
    "F16": (np.float16, None),
    "BF16": (np.int16, torch.bfloat16),
}

# Three to four times faster than the library's own functions, whose inner loops have length 16.
_OWN: dict[str, Callable[[_Bytes], NDArray[np.float32]]] = {"Q4_0": _q4_0, "Q4_1": _q4_1}
