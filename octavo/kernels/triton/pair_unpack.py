"""Codes in registers to what tensor cores multiply, two bytes at a time; for kernels in Triton's own language.

Of an operand of the tensor cores, a thread has pairs of neighbours, whichever rows the compiler gives it: so two bytes
are converted at a time. :mod:`.grouped_unpack` and :mod:`.widen_float8` convert four, in layouts that they choose.

The interpreter runs no assembly, and float32 needs none: then conversions are arithmetic.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.launch import IS_INTERPRETED

_FLOAT8 = """{
.reg .b32 p, q, factor;
mov.b32 factor, 0x7B807B80;
cvt.u32.u16 p, $1;
prmt.b32 p, p, 0, 0x1404;
shr.u32 q, p, 4;
and.b32 q, q, 0x07F007F0;
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $0, p, factor;
}"""
"""A byte becomes the upper half of 16 bits, and its exponent and fraction move to where bfloat16 has them; the factor
2¹²⁰ is the difference of the exponents' offsets."""

_INT8_BF16 = """{
.reg .b32 p, q;
cvt.u32.u16 p, $1;
prmt.b32 p, p, 0, 0x4140;
lop3.b32 q, p, 0x00800080, 0x43004300, 0xAE;
lop3.b32 p, p, 0x007F007F, 0x43004300, 0xEA;
sub.rn.bf16x2 $0, p, q;
}"""
"""Seven bits fit beside the exponent; the eighth chooses what is subtracted, 128 or 256."""
_INT8_F16 = """{
.reg .b32 p, zero;
mov.b32 zero, 0x64806480;
cvt.u32.u16 p, $1;
prmt.b32 p, p, 0x64646464, 0x4140;
sub.rn.f16x2 $0, p, zero;
}"""

_INT4 = """{{
.reg .b32 p, q;
cvt.u32.u16 p, $2;
prmt.b32 p, p, 0, 0x4140;
shl.b32 q, p, 3;
lop3.b32 q, q, 0x00780078, {one}, 0xEA;
sub.rn.{dtype} $0, q, $3;
shr.u32 q, p, 1;
lop3.b32 q, q, 0x00780078, {one}, 0xEA;
sub.rn.{dtype} $1, q, $3;
}}"""
"""A code is put into the low bits of a float with a fixed exponent, whose last place is an eighth: 16 + code in
bfloat16, 128 + code in float16. A subtraction leaves the code less its zero."""

_FLOAT4 = """{
.reg .b32 p, q, low;
cvt.u32.u16 p, $2;
prmt.b32 p, p, 0, 0x1404;
shl.b32 low, p, 4;
shr.u32 q, p, 2;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, low, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $0, q, $3;
shr.u32 q, p, 6;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, p, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $1, q, $3;
}"""
"""Sign, exponent and fraction move to where bfloat16 has them, which makes them 2⁻¹²⁶ of themselves."""

_WIDE_FLOAT8 = tl.constexpr(_FLOAT8)
_HALF_FLOAT8 = tl.constexpr("cvt.rn.f16x2.e4m3x2 $0, $1;")
_WIDE_INT8, _HALF_INT8 = tl.constexpr(_INT8_BF16), tl.constexpr(_INT8_F16)
_WIDE_INT4 = tl.constexpr(_INT4.format(one="0x41804180", dtype="bf16x2"))
_HALF_INT4 = tl.constexpr(_INT4.format(one="0x58005800", dtype="f16x2"))
_SCALED_FLOAT4 = tl.constexpr(_FLOAT4)
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def unpack_bytes(codes, dtype: tl.constexpr):
    """Float8 values (e4m3), or codes of 8 bits less 128."""
    if _IS_INTERPRETED or dtype == tl.float32:
        values = codes.to(tl.float32)
        if codes.dtype == tl.uint8:
            values -= 128
        values = values.to(dtype)
    elif codes.dtype == tl.uint8:
        integers: tl.constexpr = _WIDE_INT8 if dtype == tl.bfloat16 else _HALF_INT8
        values = tl.inline_asm_elementwise(integers, "=r,h", [codes], dtype=dtype.value, is_pure=True, pack=2)
    else:
        floats: tl.constexpr = _WIDE_FLOAT8 if dtype == tl.bfloat16 else _HALF_FLOAT8
        values = tl.inline_asm_elementwise(floats, "=r,h", [codes], dtype=dtype.value, is_pure=True, pack=2)
    return values


@triton.jit
def unpack_integers(packed, zeros, dtype: tl.constexpr):
    """Bytes of two codes each → the low halves and the high halves less their zeros.

    Args:
        zeros: int32, in eighths; of a shape that broadcasts, equal for neighbours.
    """
    if _IS_INTERPRETED or dtype == tl.float32:
        low = ((packed & 15).to(tl.float32) - zeros * 0.125).to(dtype)
        high = ((packed >> 4).to(tl.float32) - zeros * 0.125).to(dtype)
    else:
        integers: tl.constexpr = _WIDE_INT4 if dtype == tl.bfloat16 else _HALF_INT4
        first: tl.constexpr = 0x4180 if dtype == tl.bfloat16 else 0x5800
        low, high = tl.inline_asm_elementwise(
            integers,
            "=r,=r,h,r,r",
            [packed, (zeros + first) * 0x10001],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=2,
        )
    return low, high


@triton.jit
def unpack_floats(packed, exponents, dtype: tl.constexpr, HAS_LARGE_SCALES: tl.constexpr):
    """Bytes of two 4-bit floats each → the low halves and the high halves times powers of two.

    Args:
        exponents: int32, of a shape that broadcasts, equal for neighbours.
        HAS_LARGE_SCALES: whether one may be above 128, so that bfloat16 does not have the factor.
    """
    if _IS_INTERPRETED or HAS_LARGE_SCALES or dtype != tl.bfloat16:
        # Float32 has the least power of two as a subnormal number.
        bits = tl.where(exponents > 0, exponents << 23, 1 << 22)
        scale = bits.to(tl.float32, bitcast=True)
        low = (_float4_values(packed & 15) * scale).to(dtype)
        high = (_float4_values(packed >> 4) * scale).to(dtype)
    else:
        low, high = tl.inline_asm_elementwise(
            _SCALED_FLOAT4,
            "=r,=r,h,r,r",
            [packed, ((exponents + 126) << 7) * 0x10001],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=2,
        )
    return low, high


@triton.jit
def _float4_values(codes):
    numbers = codes.to(tl.int32)
    exponent = (numbers >> 1) & 3
    size = ((numbers & 1) + tl.where(exponent > 0, 2, 0)) << (tl.maximum(exponent, 1) - 1)
    return tl.where(numbers < 8, size, -size).to(tl.float32) * 0.5
