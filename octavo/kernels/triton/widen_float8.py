"""Conversion of float8 values (e4m3) in registers to 16 bits, four at a time."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Two values at a time: a byte becomes the upper half of 16 bits, and its exponent and mantissa move down to where
# bfloat16 has them; the factor 2¹²⁰ is the difference of the exponents' offsets, and makes subnormal values right.
_TO_BFLOAT16 = gl.constexpr("""
{
    .reg .b32 low, high, factor;
    mov.b32 factor, 0x7b807b80;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    shr.b32 $0, low, 4;
    and.b32 $0, $0, 0x07f007f0;
    and.b32 low, low, 0x80008000;
    or.b32 $0, $0, low;
    shr.b32 $1, high, 4;
    and.b32 $1, $1, 0x07f007f0;
    and.b32 high, high, 0x80008000;
    or.b32 $1, $1, high;
    mul.rn.bf16x2 $0, $0, factor;
    mul.rn.bf16x2 $1, $1, factor;
}
""")
_TO_FLOAT16 = gl.constexpr("""
{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}
""")


@gluon.jit
def widen(weights, dtype: gl.constexpr):
    """Float8 values in bfloat16 or float16, exactly."""
    if dtype == gl.bfloat16:
        wide = gl.inline_asm_elementwise(_TO_BFLOAT16, "=r,=r,r", [weights], dtype=gl.bfloat16, is_pure=True, pack=4)
    else:
        wide = gl.inline_asm_elementwise(_TO_FLOAT16, "=r,=r,r", [weights], dtype=gl.float16, is_pure=True, pack=4)
    return wide
