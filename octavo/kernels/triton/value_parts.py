"""Values of bfloat16 as sums of float8 values, which the tensor cores multiply with float8 weights as they are.

A value is ``8a + b + c / 8``, of ``a``, ``b`` and ``c`` of the type e5m2, which has three bits. This is exact from 2⁻¹¹
to 458,752; below, the error is at most 2⁻²⁰. So products with parts take the place of converting weights, which costs
more than reading them where values are few.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

PARTS = tl.constexpr(4)
"""Rows that hold the parts of a row of values, a power of two: the last one is not used."""

PART = torch.float8_e5m2
"""The type of parts."""

_BLOCK = 1024


@triton.jit
def split_value(value):
    """The three parts of float32 values that bfloat16 has."""
    first = (value * 0.125).to(tl.float8e5)
    rest = value - first.to(tl.float32) * 8.0
    second = rest.to(tl.float8e5)
    third = ((rest - second.to(tl.float32)) * 8.0).to(tl.float8e5)
    return first, second, third


@triton.jit
def part_factor(row):
    """What products with a row of parts are multiplied by."""
    part = row % PARTS
    return tl.where(part == 0, 8.0, tl.where(part == 1, 1.0, tl.where(part == 2, 0.125, 0.0)))


@triton.jit
def store_parts(spots, value, stride, mask):
    """Store the parts of values that are rounded to bfloat16 first; ``stride`` is from a part's row to the next."""
    first, second, third = split_value(value.to(tl.bfloat16).to(tl.float32))
    tl.store(spots, first, mask)
    tl.store(spots + stride, second, mask)
    tl.store(spots + 2 * stride, third, mask)


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
