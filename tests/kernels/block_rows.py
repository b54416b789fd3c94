"""Rows of a file's blocks, for tests of the compiled kernels."""

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from octavo.kernels.blocks import FORMATS

_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "nvfp4": (0,)}
"""Where float16 scales are in a block, for types that GGUF's library does not write."""
_FLOATS4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""4-bit floats, times two: such a block's scales are half as large."""


def random_rows(name: str, num_outputs: int, num_inputs: int, seed: int = 0) -> torch.Tensor:
    """A tensor of the type, as a file has it."""
    random = np.random.default_rng(seed)
    size, inputs = FORMATS[name].raw_bytes
    if name not in _SCALES:
        weights = random.standard_normal((num_outputs, num_inputs), dtype=np.float32) / num_inputs**0.5
        return torch.from_numpy(quants.quantize(weights, GGMLQuantizationType[name]))
    rows = random.integers(0, 256, (num_outputs, num_inputs // inputs, size), dtype=np.uint8)
    for place in _SCALES[name]:
        scales = (random.random(rows.shape[:2]) * 1e-4).astype(np.float16)
        rows[:, :, place : place + 2] = scales.view(np.uint8).reshape(*rows.shape[:2], 2)
    return torch.from_numpy(rows.reshape(num_outputs, -1))


def dequantised(name: str, rows: torch.Tensor) -> torch.Tensor:
    """The values of such a tensor, by GGUF's library where it knows the type."""
    if name != "nvfp4":
        return torch.from_numpy(quants.dequantize(rows.numpy(), GGMLQuantizationType[name])).contiguous()
    blocks = rows.numpy().reshape(len(rows), -1, 10)
    codes = np.concatenate((blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4), -1)
    values = _FLOATS4[codes] * np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float32)
    return torch.from_numpy(values.reshape(len(rows), -1))
