"""Float8 GEMMs on NVIDIA GPUs of compute capability 8.9 and above: activations by Triton, the GEMM by torch."""

from functools import cache

import torch
import triton
import triton.language as tl

from octavo.kernels import float8
from octavo.kernels.float8 import FLOAT8
from octavo.kernels.linear import ComposedLinear, LinearOp
from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch
from octavo.platforms import compute_capability

_LARGEST = tl.constexpr(float8.LARGEST)
_SMALLEST_SCALE = tl.constexpr(float8.SMALLEST_SCALE)
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
def _quantize_kernel(
    x, values, scales, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROUND: tl.constexpr, PDL: tl.constexpr
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
    scale = tl.maximum(tl.div_rn(tl.max(largest, axis=0), _LARGEST), _SMALLEST_SCALE)
    scale += tl.sum(tl.where(largest < float("inf"), 0.0, float("nan")), axis=0)  # such a row has no scale
    tl.store(scales + row, scale)
    for start in tl.static_range(0, SIZE, BLOCK):
        mask = start + columns < SIZE
        if SIZE > BLOCK:
            part = tl.load(x + row * x_stride + start + columns, mask, other=0.0).to(tl.float32)
        scaled = tl.div_rn(part, scale)
        if ROUND:
            scaled = _rounded(scaled)
        tl.store(values + row * SIZE + start + columns, scaled.to(tl.float8e4nv), mask)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to float8; see :func:`octavo.kernels.float8.quantize_rows`."""
    if not _converts(x.device):
        return float8.quantize_rows.reference(x)
    rows = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, size = rows.shape
    values = torch.empty(num_rows, size, dtype=FLOAT8, device=x.device)
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
            ROUND=IS_INTERPRETED,  # the interpreter's conversion loses the carry into the exponent
            num_warps=min(max(block // 512, 1), 8),
            **dependent_launch(x.device),
        )
    return values, scales


def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """A GEMM of float8 values; see :func:`octavo.kernels.float8.float8_linear`."""
    if weight.dtype is not FLOAT8:
        return float8.float8_linear.reference(weight, scales, bias, deterministic=deterministic)
    # With a scale per row, torch's GEMM returns bfloat16 only, which has fewer bits than the other types.
    one = torch.ones((), device=weight.device)

    def apply_wide(x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x)
        y = torch._scaled_mm(values, weight.T, one, one, out_dtype=torch.float32, use_fast_accum=False)
        y = y.mul_(row_scales).mul_(scales)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    def apply(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.bfloat16:
            return float8.in_parts(apply_wide, x)
        values, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]))
        y = torch._scaled_mm(
            values, weight.T, row_scales, scales[None], bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return y.view(*x.shape[:-1], len(scales))

    return ComposedLinear(apply), False
