"""Values of bfloat16 as sums of float8 values, which the tensor cores multiply with float8 weights as they are.

A value is ``a + b / 8 + c / 64``, where the parts ``a``, ``b`` and ``c`` have the type e5m2, of three bits. From 2⁻¹²
to 57,344 that is exact; what is smaller is off by less than 2⁻¹⁶, and what is larger becomes 57,344. So products with
parts take the place of converting weights, which costs more than reading them where values are few.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch

PARTS = tl.constexpr(4)
"""Rows that hold the parts of a row of values, a power of two: the last one is not used."""

PART = torch.float8_e5m2
"""The type of parts."""

_LARGEST = tl.constexpr(57344.0)
_BLOCK = 1024
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)

_UPPER_BYTES = tl.constexpr("""{
.reg .b32 p, q;
cvt.rn.f16x2.f32 p, $2, $1;
cvt.rn.f16x2.f32 q, $4, $3;
prmt.b32 $0, p, q, 0x7531;
}""")
"""A value of e5m2 is the upper byte of a value of float16."""


@triton.jit
def _few_bits(value):
    """Float32 values rounded to three bits."""
    return ((value.to(tl.int32, bitcast=True) + 0x100000) & -0x200000).to(tl.float32, bitcast=True)


@triton.jit
def _to_part(value):
    """Float32 values of three bits as e5m2."""
    if _IS_INTERPRETED:
        part = value.to(tl.float8e5)
    else:
        codes = tl.inline_asm_elementwise(_UPPER_BYTES, "=r,r,r,r,r", [value], dtype=tl.int8, is_pure=True, pack=4)
        part = codes.to(tl.float8e5, bitcast=True)
    return part


@triton.jit
def split_value(value):
    """The three parts of float32 values that bfloat16 has."""
    value = tl.clamp(value, -_LARGEST, _LARGEST, tl.PropagateNan.ALL)
    first = _few_bits(value)
    rest = value - first
    second = _few_bits(rest)
    third = rest - second  # NaN has one here at least
    return _to_part(first), _to_part(second * 8), _to_part(third * 64)


@triton.jit
def part_factor(row):
    """What products with a row of parts are multiplied by; see :data:`PARTS`."""
    part = row % PARTS
    return tl.where(part < 2, tl.where(part == 0, 1.0, 0.125), 0.015625)


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
