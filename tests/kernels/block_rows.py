"""Rows of a GGUF tensor, for tests of the compiled kernels."""

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from octavo.kernels.blocks import FORMATS

_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
"""Where float16 scales are in a block, for types that the library does not write."""


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
