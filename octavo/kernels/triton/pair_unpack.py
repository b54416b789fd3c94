"""Codes in registers to what tensor cores multiply, two or four bytes at a time; for kernels in Triton's own language.

Of an operand of the tensor cores, a thread has pairs of neighbours, whichever rows the compiler gives it: so scales and
zeros are those of two bytes. :mod:`.grouped_unpack` converts in layouts that it chooses.

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
.reg .b32 p, q, low, high;
mov.b32 low, {low};
mov.b32 high, {high};
prmt.b32 p, $4, 0, 0x4140;
and.b32 q, p, 0x000F000F;
fma.rn.{dtype} $0, q, low, $5;
and.b32 q, p, 0x00F000F0;
fma.rn.{dtype} $2, q, high, $5;
prmt.b32 p, $4, 0, 0x4342;
and.b32 q, p, 0x000F000F;
fma.rn.{dtype} $1, q, low, $7;
and.b32 q, p, 0x00F000F0;
fma.rn.{dtype} $3, q, high, $7;
}}"""
"""A code in the low bits of a float is a subnormal number, which a factor makes a part of the code; so it is with one
four bits higher, and a smaller factor. The same fused operation subtracts that part of the zero."""

_ZERO = """{{
.reg .b32 p, step, bias;
mov.b32 step, {step};
mov.b32 bias, {bias};
mad.lo.u32 p, $1, 0x10001, {first};
fma.rn.{dtype} $0, p, step, bias;
}}"""
"""A zero in eighths, twice, as the negative part of itself that :data:`_INT4` adds."""

_FLOAT4 = """{{
.reg .b32 p, q, low;
prmt.b32 p, $4, 0, 0x1404;
shl.b32 low, p, 4;
shr.u32 q, p, 2;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, low, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $0, q, $5;
shr.u32 q, p, 6;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, p, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $2, q, ${first};
prmt.b32 p, $4, 0, 0x3424;
shl.b32 low, p, 4;
shr.u32 q, p, 2;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, low, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $1, q, $7;
shr.u32 q, p, 6;
and.b32 q, q, 0x01C001C0;
lop3.b32 q, p, 0x80008000, q, 0xEA;
mul.rn.bf16x2 $3, q, ${second};
}}"""
"""Sign, exponent and fraction move to where bfloat16 has them, which makes them 2⁻¹²⁶ of themselves. High halves may
have scales of their own."""

_WIDE_FLOAT8 = tl.constexpr(_FLOAT8)
_HALF_FLOAT8 = tl.constexpr("cvt.rn.f16x2.e4m3x2 $0, $1;")
_WIDE_INT8, _HALF_INT8 = tl.constexpr(_INT8_BF16), tl.constexpr(_INT8_F16)
_WIDE_INT4 = tl.constexpr(_INT4.format(dtype="bf16x2", low="0x7D807D80", high="0x7B807B80"))
_HALF_INT4 = tl.constexpr(_INT4.format(dtype="f16x2", low="0x78007800", high="0x68006800"))
_WIDE_ZERO = tl.constexpr(_ZERO.format(dtype="bf16x2", first="0x43004300", step="0xB980B980", bias="0x3D003D00"))
_HALF_ZERO = tl.constexpr(_ZERO.format(dtype="f16x2", first="0x58005800", step="0x98009800", bias="0x34003400"))
_SCALED_FLOAT4 = tl.constexpr(_FLOAT4.format(first=5, second=7))
_SCALED_HALVES = tl.constexpr(_FLOAT4.format(first=9, second=11))
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)

INTEGER_SCALE = tl.constexpr(512.0)
"""What sums of integers of 4 bits are to be multiplied by."""
_FLOAT4_SCALE = tl.constexpr(2.0**32)
_MOVED_SCALE = tl.constexpr(2.0**94)


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
    """Bytes of two codes each → the low and the high halves less their zeros, over :data:`INTEGER_SCALE`.

    Args:
        zeros: int32, in eighths; of a shape that broadcasts, equal for neighbours.
    """
    if _IS_INTERPRETED or dtype == tl.float32:
        part: tl.constexpr = 1.0 / 512.0
        low = (((packed & 15).to(tl.float32) - zeros * 0.125) * part).to(dtype)
        high = (((packed >> 4).to(tl.float32) - zeros * 0.125) * part).to(dtype)
    else:
        integers: tl.constexpr = _WIDE_INT4 if dtype == tl.bfloat16 else _HALF_INT4
        negative: tl.constexpr = _WIDE_ZERO if dtype == tl.bfloat16 else _HALF_ZERO
        pairs = tl.inline_asm_elementwise(negative, "=r,r", [zeros], dtype=tl.int32, is_pure=True, pack=1)
        low, high = tl.inline_asm_elementwise(
            integers,
            "=r,=r,=r,=r,r,r,r,r,r",
            [packed, pairs],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def unpack_floats(packed, exponents, dtype: tl.constexpr):
    """Bytes of two 4-bit floats each → the low and the high halves times powers of two; see :func:`scale_floats`.

    Args:
        exponents: int32 up to 160, of a shape that broadcasts, equal for neighbours.
    """
    if _IS_INTERPRETED or dtype != tl.bfloat16:
        scale = powers_of_two(exponents)
        low = (float4_values(packed & 15) * scale).to(dtype)
        high = (float4_values(packed >> 4) * scale).to(dtype)
    else:
        low, high = tl.inline_asm_elementwise(
            _SCALED_FLOAT4,
            "=r,=r,=r,=r,r,r,r,r,r",
            [packed, ((exponents + (126 - 32)) << 7) * 0x10001],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def unpack_scaled(packed, low_scales, high_scales, dtype: tl.constexpr):
    """The same of halves times float8 scales (NVFP4); types of 16 bits have the products exactly.

    Args:
        low_scales, high_scales: bytes (e4m3) of a shape that broadcasts, equal for neighbours.
    """
    low_scales, high_scales = float8_values(low_scales), float8_values(high_scales)
    if _IS_INTERPRETED or dtype != tl.bfloat16:
        low = (float4_values(packed & 15) * low_scales).to(dtype)
        high = (float4_values(packed >> 4) * high_scales).to(dtype)
    else:
        low, high = tl.inline_asm_elementwise(
            _SCALED_HALVES,
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r",
            [packed, _moved_pairs(low_scales), _moved_pairs(high_scales)],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def _moved_pairs(scales):
    """Scales times 2¹²⁶⁻³² in bfloat16, twice in a word."""
    moved = (scales * _MOVED_SCALE).to(tl.bfloat16).to(tl.int16, bitcast=True)
    return (moved.to(tl.int32) & 0xFFFF) * 0x10001


@triton.jit
def float8_values(stored):
    """Bytes of float8 values (e4m3) to float32.

    Not all GPUs convert them; but for the bias of the exponent they are the upper bits of float16.
    """
    bits = stored.to(tl.uint16)
    bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def scale_floats(sums, dtype: tl.constexpr):
    """Sums of what :func:`unpack_floats` and :func:`unpack_scaled` return: 2⁻³² of the values in bfloat16.

    So it has all factors.
    """
    if not _IS_INTERPRETED and dtype == tl.bfloat16:
        sums *= _FLOAT4_SCALE
    return sums


@triton.jit
def powers_of_two(exponents):
    """What int32 exponents of scales stand for, in float32."""
    # Float32 has the least power of two as a subnormal number.
    return tl.where(exponents > 0, exponents << 23, 1 << 22).to(tl.float32, bitcast=True)


@triton.jit
def float4_values(codes):
    numbers = codes.to(tl.int32)
    exponent = (numbers >> 1) & 3
    size = ((numbers & 1) + tl.where(exponent > 0, 2, 0)) << (tl.maximum(exponent, 1) - 1)
    return tl.where(numbers < 8, size, -size).to(tl.float32) * 0.5
