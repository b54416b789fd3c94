"""Codes in registers to the whole numbers, or small floats, that tensor cores multiply; for kernels in Gluon.

Four codes are unpacked at a time by operations on 32 bits. A code is put into the low bits of a float with a fixed
exponent, and a subtraction of two floats at a time leaves its value.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_INT4 = """{{
.reg .b32 low, high, one, zero;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
mov.b32 one, {one};
mov.b32 zero, {zero};
prmt.b32 $0, low, one, 0x4140;
prmt.b32 $1, low, one, 0x4342;
prmt.b32 $2, high, one, 0x4140;
prmt.b32 $3, high, one, 0x4342;
sub.rn.{dtype} $0, $0, zero;
sub.rn.{dtype} $1, $1, zero;
sub.rn.{dtype} $2, $2, zero;
sub.rn.{dtype} $3, $3, zero;
}}"""
"""Four bytes to the values of their low halves and of their high halves, all less 8."""

_FLOAT4 = """{{
.reg .b32 up, p, q, one;
shl.b32 up, $4, 4;
mov.b32 one, {one};
prmt.b32 p, up, 0, 0x1404;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $0, p, one;
prmt.b32 p, up, 0, 0x3424;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $1, p, one;
prmt.b32 p, $4, 0, 0x1404;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $2, p, one;
prmt.b32 p, $4, 0, 0x3424;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $3, p, one;
}}"""
"""Likewise for floats: sign, exponent and fraction are moved to their places, the exponents' biases differ."""

_INT8_BF16 = """{
.reg .b32 p, q;
prmt.b32 p, $2, 0, 0x4140;
lop3.b32 q, p, 0x00800080, 0x43004300, 0xAE;
lop3.b32 p, p, 0x007F007F, 0x43004300, 0xEA;
sub.rn.bf16x2 $0, p, q;
prmt.b32 p, $2, 0, 0x4342;
lop3.b32 q, p, 0x00800080, 0x43004300, 0xAE;
lop3.b32 p, p, 0x007F007F, 0x43004300, 0xEA;
sub.rn.bf16x2 $1, p, q;
}"""
"""Four bytes less 128: seven bits fit beside the exponent; the eighth chooses what is subtracted, 128 or 256."""

_INT8_F16 = """{
.reg .b32 one, zero;
mov.b32 one, 0x64646464;
mov.b32 zero, 0x64806480;
prmt.b32 $0, $2, one, 0x4140;
prmt.b32 $1, $2, one, 0x4342;
sub.rn.f16x2 $0, $0, zero;
sub.rn.f16x2 $1, $1, zero;
}"""

_FLOAT8 = """{{
.reg .b32 p, q, one;
mov.b32 one, {one};
prmt.b32 p, $2, 0, 0x1404;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $0, p, one;
prmt.b32 p, $2, 0, 0x3424;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $1, p, one;
}}"""
"""Four e4m3 values, NaN excluded."""


_INT4_WIDE = gl.constexpr(_INT4.format(one="0x43434343", zero="0x43084308", dtype="bf16x2"))
_INT4_HALF = gl.constexpr(_INT4.format(one="0x64646464", zero="0x64086408", dtype="f16x2"))
_FLOAT4_WIDE = gl.constexpr(_FLOAT4.format(one="0x7E807E80", shift=6, mask="0x01C001C0", dtype="bf16x2"))
_FLOAT4_HALF = gl.constexpr(_FLOAT4.format(one="0x74007400", shift=3, mask="0x0E000E00", dtype="f16x2"))
_INT8_WIDE = gl.constexpr(_INT8_BF16)
_INT8_HALF = gl.constexpr(_INT8_F16)
_FLOAT8_WIDE = gl.constexpr(_FLOAT8.format(one="0x7B807B80", shift=4, mask="0x07F007F0", dtype="bf16x2"))
_FLOAT8_HALF = gl.constexpr(_FLOAT8.format(one="0x5C005C00", shift=1, mask="0x3F803F80", dtype="f16x2"))


@gluon.jit
def unpack_halves(codes, IS_FLOAT: gl.constexpr, dtype: gl.constexpr):
    """Bytes of two codes each → the values of their low halves and of their high halves; integers less 8."""
    if dtype == gl.bfloat16:
        asm: gl.constexpr = _FLOAT4_WIDE if IS_FLOAT else _INT4_WIDE
        both: gl.constexpr = (gl.bfloat16, gl.bfloat16)
    else:
        asm: gl.constexpr = _FLOAT4_HALF if IS_FLOAT else _INT4_HALF
        both: gl.constexpr = (gl.float16, gl.float16)
    return gl.inline_asm_elementwise(asm, "=r,=r,=r,=r,r", [codes], dtype=both, is_pure=True, pack=4)


@gluon.jit
def unpack_bytes(codes, dtype: gl.constexpr):
    """Integers of 8 bits less 128, or e4m3 values that are no NaN."""
    if dtype == gl.bfloat16:
        asm: gl.constexpr = _INT8_WIDE if codes.dtype == gl.uint8 else _FLOAT8_WIDE
        one: gl.constexpr = gl.bfloat16
    else:
        asm: gl.constexpr = _INT8_HALF if codes.dtype == gl.uint8 else _FLOAT8_HALF
        one: gl.constexpr = gl.float16
    return gl.inline_asm_elementwise(asm, "=r,=r,r", [codes], dtype=one.value, is_pure=True, pack=4)
