"""GEMMs of 8-bit values on NVIDIA GPUs: activations are rounded by Triton.

Float8 (compute capability 8.9 and above) is multiplied by torch, int8 by the kernel in :mod:`.int8_kernel`.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from octavo.kernels import scaled
from octavo.kernels.linear import ComposedLinear, LinearOp
from octavo.kernels.scaled import FLOAT8, INT8, LARGEST
from octavo.kernels.triton.grouped import choose_parts
from octavo.kernels.triton.int8_kernel import BLOCK_K, int8_kernel
from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch, num_multiprocessors
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.platforms import compute_capability

_SMALLEST_SCALE = tl.constexpr(scaled.SMALLEST_SCALE)
_MAX_BLOCK = 8192


@cache
def _converts(device: torch.device) -> bool:
    """Whether a device's Triton kernels convert to float8."""
    return IS_INTERPRETED or compute_capability(device) >= (8, 9)


@triton.jit
def _rounded(x):
    """Float32 values, at most 448 in magnitude or NaN, rounded to those that float8 has; to nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = (x + 24576.0) - 24576.0  # 1.5 · 2²³ steps of 2⁻⁹
    return tl.where(tl.abs(x) <= 448.0, tl.where(tl.abs(x) < 0.015625, subnormal, normal), x)  # NaN stays


@triton.jit
def _whole(x):
    """Float32 values of int8's range rounded to whole numbers; to nearest, ties to even. NaN becomes 0."""
    below = tl.floor(x)
    rest, is_odd = x - below, below != 2 * tl.floor(below / 2)
    rounded = tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), below + 1, below)
    return tl.where(tl.abs(x) < 128.0, rounded, 0.0)


@triton.jit
def _quantize_kernel(
    x,
    values,
    scales,
    x_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program rounds one row, reading it twice if it is longer than ``BLOCK``; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    largest = tl.zeros([BLOCK], tl.float32)
    part = largest
    for start in tl.static_range(0, SIZE, BLOCK):
        part = tl.load(x + row * x_stride + start + columns, start + columns < SIZE, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(part), propagate_nan=tl.PropagateNan.ALL)
    scale = tl.maximum(tl.div_rn(tl.max(largest, axis=0), LARGEST), _SMALLEST_SCALE)
    scale += tl.sum(tl.where(largest < float("inf"), 0.0, float("nan")), axis=0)  # such a row has no scale
    tl.store(scales + row, scale)
    for start in tl.static_range(0, SIZE, BLOCK):
        mask = start + columns < SIZE
        if SIZE > BLOCK:
            part = tl.load(x + row * x_stride + start + columns, mask, other=0.0).to(tl.float32)
        scaled = tl.div_rn(part, scale)
        if values.dtype.element_ty == tl.int8:
            scaled = _whole(scaled)
        elif ROUND:
            scaled = _rounded(scaled)
        tl.store(values + row * SIZE + start + columns, scaled.to(values.dtype.element_ty), mask)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype = FLOAT8) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows; see :func:`octavo.kernels.scaled.quantize_rows`."""
    if dtype is FLOAT8 and not _converts(x.device):
        return scaled.quantize_rows.reference(x, dtype)
    rows = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, size = rows.shape
    values = torch.empty(num_rows, size, dtype=dtype, device=x.device)
    scales = torch.empty(num_rows, 1, dtype=torch.float32, device=x.device)
    if num_rows:
        block = min(triton.next_power_of_2(size), _MAX_BLOCK)
        _quantize_kernel[(num_rows,)](
            rows,
            values,
            scales,
            rows.stride(0),
            SIZE=size,
            BLOCK=block,
            LARGEST=LARGEST[dtype],
            ROUND=IS_INTERPRETED,  # the interpreter's conversion loses the carry into the exponent
            num_warps=min(max(block // 512, 1), 8),
            **dependent_launch(x.device),
        )
    return values, scales


def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """A GEMM of float8 values; see :func:`octavo.kernels.scaled.float8_linear`."""
    if weight.dtype is not FLOAT8:
        return scaled.float8_linear.reference(weight, scales, bias, deterministic=deterministic)
    # With a scale per row, torch's GEMM returns bfloat16 only, which has fewer bits than the other types.
    one = torch.ones((), device=weight.device)

    def apply_wide(x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x)
        y = torch._scaled_mm(values, weight.T, one, one, out_dtype=torch.float32, use_fast_accum=False)
        y = y.mul_(row_scales).mul_(scales)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    def apply(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.bfloat16:
            return scaled.in_parts(apply_wide, x)
        values, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]))
        y = torch._scaled_mm(
            values, weight.T, row_scales, scales[None], bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return y.view(*x.shape[:-1], len(scales))

    return ComposedLinear(apply), False


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
