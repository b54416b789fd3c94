"""GEMMs of 8-bit values on NVIDIA GPUs: activations are rounded by Triton (:mod:`.quantize`).

Float8 (compute capability 8.9 and above) is multiplied by torch, and where rows are few by :mod:`.linear_stream` and
:mod:`.linear_float8`; int8 by the kernel in :mod:`.int8_kernel`.
"""

import torch

from octavo.kernels import scaled
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import GATES, ComposedLinear, LinearOp
from octavo.kernels.scaled import FLOAT8, INT8
from octavo.kernels.triton import linear_float8, linear_stream
from octavo.kernels.triton.grouped import choose_parts
from octavo.kernels.triton.int8_kernel import BLOCK_K, int8_kernel
from octavo.kernels.triton.launch import (
    aligned_rows,
    dependent_launch,
    is_hopper,
    num_multiprocessors,
)
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.kernels.triton.quantize import quantize_rows


class Float8Linear(LinearOp):
    """The GEMM of one float8 weight: few rows of bfloat16 and float16 by Octavo's kernels on Hopper, else by torch's.

    Up to 8 rows are multiplied as they are: reading the weight takes so long that rounding them would save nothing.

    Args:
        weight: ``[out, in]`` float8.
        scales: ``[out]`` float32.
        bias: ``[out]`` or None.
        deterministic: whether all rows go one way, so that a row's bits do not depend on others: torch's.
    """

    writes_strided = True

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
    ) -> None:
        self._weight = weight
        self._scales = scales
        self._bias = bias
        # With a scale per row, torch's GEMM returns bfloat16 only, which has fewer bits than the other types.
        self._one = torch.ones((), device=weight.device)
        self._uses_kernels = (
            not deterministic
            and is_hopper(weight.device)
            and weight.is_contiguous()
            and scales.is_contiguous()
            and weight.shape[1] % 16 == 0
            and weight.data_ptr() % 16 == 0
        )
        self._num_sms = num_multiprocessors(weight.device) if self._uses_kernels else 0
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in] → [..., out]``, into ``out`` if it is given."""
        rows = x.reshape(-1, x.shape[-1])
        y = self._by_kernels(rows, "none")
        y = (self._by_library(rows) if y is None else y).view(*x.shape[:-1], len(self._scales))
        return y if out is None else out.copy_(y)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        rows = x.reshape(-1, x.shape[-1])
        y = self._by_kernels(rows, activation)
        y = GATES[activation](self._by_library(rows)) if y is None else y
        return y.view(*x.shape[:-1], len(self._scales) // 2)

    def normed(self, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
        """See :meth:`octavo.kernels.linear.LinearOp.normed`."""
        return self._by_kernels(norm.x, activation, norm) if norm.is_single else None

    def _by_kernels(self, x: torch.Tensor, activation: str, norm: DeferredNorm | None = None) -> torch.Tensor | None:
        """``[M, in] → [M, out]``, or ``[M, out / 2]`` with an activation; None if torch is faster."""
        if not self._uses_kernels or x.dtype not in (torch.bfloat16, torch.float16):
            return None
        is_gated = activation != "none"
        num_channels = len(self._scales) // (2 if is_gated else 1)
        gemm = (len(x), num_channels, x.shape[1])
        stream_tile = linear_stream.choose_float8_tile(*gemm, is_gated=is_gated, num_sms=self._num_sms)
        if stream_tile is not None:
            y = x.new_empty(len(x), num_channels)
            linear_stream.stream_linear(
                aligned_rows(x), self._weight, self._bias, y, activation, stream_tile, self._scales, norm
            )
            return y
        assert norm is None, "a single row has a tile above"
        tile = linear_float8.choose_tile(*gemm, is_gated=is_gated, num_sms=self._num_sms)
        if tile is None:
            return None
        values, row_scales = quantize_rows(x)
        y = x.new_empty(len(x), num_channels)
        needed = tile.workspace(len(x), num_channels, is_gated=is_gated)
        space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
        linear_float8.float8_linear(
            values, row_scales, self._weight, self._scales, self._bias, y, activation, tile, space
        )
        return y

    def _by_library(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.bfloat16:
            return scaled.in_parts(self._in_float32, x)
        values, row_scales = quantize_rows(x)
        return torch._scaled_mm(
            values,
            self._weight.T,
            row_scales,
            self._scales[None],
            bias=self._bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def _in_float32(self, x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x)
        y = torch._scaled_mm(
            values, self._weight.T, self._one, self._one, out_dtype=torch.float32, use_fast_accum=False
        )
        y = y.mul_(row_scales).mul_(self._scales)
        return (y if self._bias is None else y.add_(self._bias)).to(x.dtype)


def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """A GEMM of float8 values; see :func:`octavo.kernels.scaled.float8_linear`."""
    if weight.dtype is not FLOAT8:
        return scaled.float8_linear.reference(weight, scales, bias, deterministic=deterministic)
    return Float8Linear(weight, scales, bias, deterministic=deterministic), False


_MAX_PARTED_ROWS = 64
"""Beyond so many rows, there are tiles enough for all multiprocessors, and each program adds up whole sums."""


class Int8Linear:
    """The GEMM of one int8 weight, ``[..., in] → [..., out]``. Sums are exact, however they are divided."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._scales = scales
        self._bias = bias
        num_outputs, num_inputs = weight.shape
        self._num_parts = choose_parts(num_outputs, -(-num_inputs // BLOCK_K), num_multiprocessors(weight.device))
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]), INT8)
        num_rows, num_inputs = values.shape
        num_outputs = len(self._weight)
        y = x.new_empty(num_rows, num_outputs)
        if num_rows:
            is_few = num_rows <= _MAX_PARTED_ROWS
            block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64 if is_few else 128
            block_n = 64 if is_few else 128
            tiles_n, tiles_m = -(-num_outputs // block_n), -(-num_rows // block_m)
            num_parts = self._num_parts if is_few else 1
            needed = (num_parts * num_rows * tiles_n * block_n, tiles_n * tiles_m) if num_parts > 1 else (0, 0)
            space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
            int8_kernel[(tiles_m * tiles_n, num_parts)](
                values,
                row_scales,
                self._weight,
                self._scales,
                self._bias,
                y,
                space.partials.view(torch.int32),
                space.arrivals,
                num_rows,
                num_outputs,
                num_inputs,
                num_parts,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=BLOCK_K,
                IS_EVEN=num_inputs % BLOCK_K == 0,
                SPLIT=num_parts > 1,
                num_warps=4 if is_few else 8,
                num_stages=4,
                **dependent_launch(x.device),
            )
        return y.view(*x.shape[:-1], num_outputs)


def int8_linear(weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> tuple[LinearOp, bool]:
    """A GEMM of int8 values; see :func:`octavo.kernels.scaled.int8_linear`."""
    return ComposedLinear(Int8Linear(weight, scales, bias)), False
