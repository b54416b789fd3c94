"""Values of bfloat16 as sums of float8 values, which the tensor cores multiply with float8 weights as they are.

A value is the sum of four parts of the type e4m3, of four bits each, times powers of two that are the same for all
values: two parts have all bits of a large value, the others those of a small one. From 2⁻¹⁵ to 458,752 it is exact, and
below within 2⁻²⁴. So products with parts take the place of converting weights, which costs more than reading them where
values are few.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

PARTS = tl.constexpr(4)
"""Rows that hold the parts of a row of values."""

PART = torch.float8_e4m3fn
"""The type of parts."""

_STEP0, _STEP1, _STEP2, _STEP3 = (tl.constexpr(2.0**power) for power in (10, 6, -9, -14))
"""What parts are multiplied by. What a part leaves is at most 2⁻⁴ of the value, or 2⁻¹⁰ steps of the part."""

_BLOCK = 1024


@triton.jit
def split_value(value):
    """The parts of float32 values that bfloat16 has."""
    first = (value * (1.0 / _STEP0)).to(tl.float8e4nv)
    rest = value - first.to(tl.float32) * _STEP0
    second = (rest * (1.0 / _STEP1)).to(tl.float8e4nv)
    rest -= second.to(tl.float32) * _STEP1
    third = (rest * (1.0 / _STEP2)).to(tl.float8e4nv)
    rest -= third.to(tl.float32) * _STEP2
    return first, second, third, (rest * (1.0 / _STEP3)).to(tl.float8e4nv)


@triton.jit
def part_factor(row):
    """What products with a row of parts are multiplied by."""
    part = row % PARTS
    return tl.where(part < 2, tl.where(part == 0, _STEP0, _STEP1), tl.where(part == 2, _STEP2, _STEP3))


@triton.jit
def store_parts(spots, value, stride, mask):
    """Store the parts of values that are rounded to bfloat16 first; ``stride`` is from a part's row to the next."""
    first, second, third, fourth = split_value(value.to(tl.bfloat16).to(tl.float32))
    tl.store(spots, first, mask)
    tl.store(spots + stride, second, mask)
    tl.store(spots + 2 * stride, third, mask)
    tl.store(spots + 3 * stride, fourth, mask)


@triton.jit
def _split_kernel(x, parts, size, x_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """A program splits ``BLOCK`` values of a row; grid (rows, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + row * x_stride + columns, columns < size, other=0.0)
    store_parts(parts + row * PARTS * size + columns, values, size, columns < size)


def empty_parts(x: torch.Tensor, num_rows: int, size: int) -> torch.Tensor:
    """Memory for parts of rows, ``[rows · PARTS, size]``, on the device of ``x``."""
    return torch.empty(num_rows * PARTS.value, size, dtype=PART, device=x.device)


def split_rows(x: torch.Tensor) -> torch.Tensor:
    """The parts of ``[rows, size]`` bfloat16, ``[rows · PARTS, size]``."""
    num_rows, size = x.shape
    parts = empty_parts(x, num_rows, size)
    grid = (num_rows, triton.cdiv(size, _BLOCK))
    _split_kernel[grid](x, parts, size, x.stride(0), BLOCK=_BLOCK, num_warps=4, **dependent_launch(x.device))
    return parts
