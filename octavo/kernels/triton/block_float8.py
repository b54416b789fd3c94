"""GEMMs of float8 weights with a scale per block of 128 × 128, for many rows on Hopper: DeepSeek's and Qwen's layout.

Activations are rounded to float8 with a scale per token and 128 inputs, and the library adds up scaled sums of 128
products, as the checkpoints were made for.
"""

import torch

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton.launch import is_hopper
from octavo.kernels.triton.quantize import quantize_groups
from octavo.platforms import cuda_version

BLOCK = 128
"""Outputs and inputs that share a scale."""

_MIN_CUDA = (12, 9)
"""The library's first version that multiplies such weights."""

_SCALE_UNIT = 4
"""Groups of a row are whole units for the library, and so are rows."""


def multiplies_blocks(device: torch.device) -> bool:
    """Whether the library of a device does."""
    return is_hopper(device) and cuda_version() >= _MIN_CUDA


def block_scales(weight: GroupedTensors) -> torch.Tensor | None:
    """A weight's scales by block, ``[blocks of outputs, groups]`` float32; None if the library does not take them.

    Outputs of a block must have the same ones.
    """
    num_outputs, num_groups = weight.scales.shape
    if weight.codes.dtype is not FLOAT8 or weight.group != BLOCK or num_outputs % 16 or num_groups % _SCALE_UNIT:
        return None
    firsts = weight.scales[::BLOCK]
    is_shared = torch.equal(firsts.repeat_interleave(BLOCK, 0)[:num_outputs], weight.scales)
    return firsts.clone() if is_shared else None


def block_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x Wᵀ + b``, ``[M, in] → [M, out]``.

    Args:
        x: bfloat16, of at least one row.
        codes: ``[out, in]`` float8, contiguous.
        scales: see :func:`block_scales`.
    """
    values, row_scales = quantize_groups(x, BLOCK, by_group=True)
    y = torch._scaled_mm(values, codes.T, row_scales, scales.T, out_dtype=x.dtype)[: len(x)]
    return y if bias is None else y.add_(bias)
