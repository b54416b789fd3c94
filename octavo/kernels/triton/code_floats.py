"""Codes in registers to float32, four bytes at a time, for sums outside the tensor cores.

Kernels in Triton's own language use them. In the interpreter, which runs no assembly, conversions are arithmetic.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.pair_unpack import float4_values

_FLOATS8 = """{
.reg .b16 a, b;
.reg .b32 p, q;
mov.b32 {a, b}, $4;
cvt.rn.f16x2.e4m3x2 p, a;
cvt.rn.f16x2.e4m3x2 q, b;
mov.b32 {a, b}, p;
cvt.f32.f16 $0, a;
cvt.f32.f16 $1, b;
mov.b32 {a, b}, q;
cvt.f32.f16 $2, a;
cvt.f32.f16 $3, b;
}"""

# A byte is the last one of a number from 2²³ on, whose steps are 1.
_INTEGERS8 = """{
.reg .b32 p;
prmt.b32 p, $4, 0x4B000000, 0x7440;
sub.rn.f32 $0, p, 0f4B000080;
prmt.b32 p, $4, 0x4B000000, 0x7441;
sub.rn.f32 $1, p, 0f4B000080;
prmt.b32 p, $4, 0x4B000000, 0x7442;
sub.rn.f32 $2, p, 0f4B000080;
prmt.b32 p, $4, 0x4B000000, 0x7443;
sub.rn.f32 $3, p, 0f4B000080;
}"""

# A code beside the exponent of 1024 adds to it; one four bits higher adds sixteen times as much.
_LOW_INTEGERS = """lop3.b32 q, p, 0x000F000F, 0x64006400, 0xEA;
mov.b32 r, 0x64006400;
sub.rn.f16x2 q, q, r;"""
_HIGH_INTEGERS = """lop3.b32 q, p, 0x00F000F0, 0x64006400, 0xEA;
mov.b32 r, 0x2C002C00;
mov.b32 s, 0xD400D400;
fma.rn.f16x2 q, q, r, s;"""

# Sign, exponent and fraction move to where float16 has them, which makes them 2⁻¹⁴ of themselves.
_LOW_FLOATS = """shl.b32 r, p, 4;
shl.b32 q, p, 1;
and.b32 q, q, 0x0E000E00;
lop3.b32 q, r, 0x80008000, q, 0xEA;"""
_HIGH_FLOATS = """shr.u32 q, p, 3;
and.b32 q, q, 0x0E000E00;
lop3.b32 q, p, 0x80008000, q, 0xEA;"""


def _by_two(low: str, high: str, selectors: tuple[str, str]) -> str:
    """Assembly that converts four bytes: their low halves to outputs 0 to 3, their high halves to 4 to 7.

    Args:
        low, high: instructions that turn the halves of two bytes in ``p`` into 16-bit floats in ``q``.
        selectors: how two bytes come into ``p``.
    """
    lines = [".reg .b32 p, q, r, s;", ".reg .b16 a, b;"]
    for pair, selector in enumerate(selectors):
        lines.append(f"prmt.b32 p, $8, 0, {selector};")
        for convert, output in ((low, 2 * pair), (high, 4 + 2 * pair)):
            lines += [convert, "mov.b32 {a, b}, q;", f"cvt.f32.f16 ${output}, a;", f"cvt.f32.f16 ${output + 1}, b;"]
    return "\n".join(("{", *lines, "}"))


_FOUR_FLOATS8, _FOUR_INTEGERS8 = tl.constexpr(_FLOATS8), tl.constexpr(_INTEGERS8)
_EIGHT_INTEGERS4 = tl.constexpr(_by_two(_LOW_INTEGERS, _HIGH_INTEGERS, ("0x4140", "0x4342")))
_EIGHT_FLOATS4 = tl.constexpr(_by_two(_LOW_FLOATS, _HIGH_FLOATS, ("0x1404", "0x3424")))
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)

FLOAT4_SCALE = tl.constexpr(2.0**14)
"""What sums of :func:`halves_to_floats` are to be multiplied by if codes are floats."""


@triton.jit
def bytes_to_floats(codes, FORM: tl.constexpr):
    """Values of ``float8`` (e4m3), or codes of ``int8`` less 128."""
    if _IS_INTERPRETED:
        values = codes.to(tl.float32)
        if FORM == "int8":
            values -= 128
    else:
        assembly: tl.constexpr = _FOUR_FLOATS8 if FORM == "float8" else _FOUR_INTEGERS8
        values = tl.inline_asm_elementwise(assembly, "=f,=f,=f,=f,r", [codes], dtype=tl.float32, is_pure=True, pack=4)
    return values


@triton.jit
def halves_to_floats(codes, FORM: tl.constexpr):
    """Low halves and high halves of bytes: codes of ``int4``, or values of ``float4`` over :data:`FLOAT4_SCALE`."""
    if _IS_INTERPRETED:
        low, high = (codes & 15).to(tl.float32), (codes >> 4).to(tl.float32)
        if FORM == "float4":
            part: tl.constexpr = 1.0 / FLOAT4_SCALE
            low, high = float4_values(codes & 15) * part, float4_values(codes >> 4) * part
    else:
        assembly: tl.constexpr = _EIGHT_FLOATS4 if FORM == "float4" else _EIGHT_INTEGERS4
        low, high = tl.inline_asm_elementwise(
            assembly,
            "=f,=f,=f,=f,=f,=f,=f,=f,r",
            [codes],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=4,
        )
    return low, high
