"""GEMMs of float8 weights with a scale per block of 128 × 128, for many rows on Hopper: DeepSeek's and Qwen's layout.

Activations are rounded to float8 with a scale per token and 128 inputs, and scaled sums of 128 products are added up,
as the checkpoints were made for: by :mod:`.linear_specialised`, and where rows are many by the library.
"""

import torch

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton.launch import is_hopper, num_multiprocessors
from octavo.kernels.triton.linear_float8 import choose_tile
from octavo.kernels.triton.linear_specialised import specialised_linear
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.kernels.triton.quantize import quantize_groups, quantize_normed
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


def shares_scales(weight: GroupedTensors) -> bool:
    """Whether all outputs of a block have the same scales."""
    firsts = weight.scales[::BLOCK].repeat_interleave(BLOCK, 0)
    return torch.equal(firsts[: len(weight.scales)], weight.scales)


def block_scales(weight: GroupedTensors) -> torch.Tensor | None:
    """A weight's scales by block, ``[blocks of outputs, groups]`` float32; None if the library does not take them."""
    num_outputs, num_groups = weight.scales.shape
    if weight.codes.dtype is not FLOAT8 or weight.group != BLOCK or num_outputs % 16 or num_groups % _SCALE_UNIT:
        return None
    return weight.scales[::BLOCK].clone() if shares_scales(weight) else None


class BlockFloat8Linear:
    """The GEMM of one weight, ``[M, in] → [M, out]``, of at least one row of bfloat16.

    Args:
        codes: ``[out, in]`` float8, contiguous.
        scales: see :func:`block_scales`.
    """

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._codes = codes
        self._scales = scales
        self._bias = bias
        self._num_sms = num_multiprocessors(codes.device)
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """``x Wᵀ + b``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``."""
        return self._multiply(*quantize_groups(x, BLOCK, by_group=True), len(x), activation)

    def normed(self, norm: DeferredNorm, activation: str) -> torch.Tensor | None:
        """See :meth:`octavo.kernels.linear.LinearOp.normed`."""
        num_rows = norm.num_rows
        return None if norm.is_computed else self._multiply(*quantize_normed(norm, BLOCK), num_rows, activation)

    def refresh(self, scales: torch.Tensor) -> None:
        """Take new scales; the codes' memory has new ones."""
        self._scales.copy_(scales)

    def _multiply(self, values: torch.Tensor, row_scales: torch.Tensor, num_rows: int, activation: str) -> torch.Tensor:
        num_weights, num_inputs = self._codes.shape
        tile = choose_tile(num_rows, num_weights, num_inputs, num_sms=self._num_sms, by_block=True)
        if tile is None or (activation != "none" and num_weights % (2 * BLOCK)):
            y = torch._scaled_mm(values, self._codes.T, row_scales, self._scales.T, out_dtype=torch.bfloat16)
            y = y[:num_rows] if self._bias is None else y[:num_rows].add_(self._bias)
            return y if activation == "none" else GATES[activation](y)
        num_channels = num_weights // (1 if activation == "none" else 2)
        y = values.new_empty(num_rows, num_channels, dtype=torch.bfloat16)
        needed = tile.workspace(num_rows, num_weights)
        space = self._space = reserve_workspace(values.device, *needed, at_hand=self._space)
        specialised_linear(values, row_scales, self._codes, self._scales, self._bias, y, activation, tile, space)
        return y
