"""Device functions that read keys and values of 8 bits in pairs.

Two neighbouring values of a head are one word of 16 bits, which shared memory hands to the tensor cores' operands as
it does values of 16 bits, transposed ones included; single bytes would take a load each. A tile thus has two parts, its
even and its odd dimensions, and attention takes both in turn. Conversions are exact: a value's bits move to where the
wider type has them, and a multiplication corrects the exponent, subnormal values included. NaN is not kept by values,
but by the scales of :func:`octavo.kernels.triton.cache_scales.scale_of`.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.launch import IS_INTERPRETED

_IN_ASSEMBLY: tl.constexpr = tl.constexpr(not IS_INTERPRETED)


@triton.constexpr_function
def _assembly(stored, wide):
    """Instructions that make two pairs (``$2``) two even values (``$0``) and two odd ones (``$1``)."""
    is_brain = wide == tl.bfloat16
    name = "bf16x2" if is_brain else "f16x2"
    if stored == tl.int8:
        # The upper bit of a code counts -128: it is once or twice the base, to which the lower bits are added.
        base, negative, one = (0x43004300, 0xC300C300, 0x3F803F80) if is_brain else (0x64006400, 0xE400E400, 0x3C003C00)
        return f"""{{
            .reg .b32 word, offset, one;
            mov.b32 one, {one};
            and.b32 $0, $2, 0x007F007F;
            or.b32 $0, $0, {base};
            and.b32 offset, $2, 0x00800080;
            or.b32 offset, offset, {negative};
            fma.rn.{name} $0, $0, one, offset;
            shr.b32 word, $2, 8;
            and.b32 $1, word, 0x007F007F;
            or.b32 $1, $1, {base};
            and.b32 offset, word, 0x00800080;
            or.b32 offset, offset, {negative};
            fma.rn.{name} $1, $1, one, offset;
        }}"""
    if stored == tl.float8e4nv:
        shift, mask, factor = (4, 0x07F007F0, 0x7B807B80) if is_brain else (1, 0x3F803F80, 0x5C005C00)
    else:
        shift, mask, factor = (3, 0x0FE00FE0, 0x77807780) if is_brain else (0, 0x7F007F00, 0x3C003C00)
    return f"""{{
        .reg .b32 sign, factor, zero;
        mov.b32 factor, {factor};
        mov.b32 zero, 0x80008000;
        shl.b32 sign, $2, 8;
        and.b32 sign, sign, 0x80008000;
        shl.b32 $0, $2, {8 - shift};
        and.b32 $0, $0, {mask};
        or.b32 $0, $0, sign;
        fma.rn.{name} $0, $0, factor, zero;
        and.b32 sign, $2, 0x80008000;
        shr.b32 $1, $2, {shift};
        and.b32 $1, $1, {mask};
        or.b32 $1, $1, sign;
        fma.rn.{name} $1, $1, factor, zero;
    }}"""


@triton.jit
def widen_pairs(pairs: tl.tensor, stored: tl.constexpr, wide: tl.constexpr):
    """The even and the odd values of pairs, of a 16-bit type or float32.

    Args:
        pairs: int16.
        stored: the type of the values, of 8 bits.
    """
    ASSEMBLY: tl.constexpr = _assembly(stored, wide)
    if _IN_ASSEMBLY and wide == tl.bfloat16:
        even, odd = tl.inline_asm_elementwise(
            ASSEMBLY, "=&r,=&r,r", [pairs], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    elif _IN_ASSEMBLY and wide == tl.float16:
        even, odd = tl.inline_asm_elementwise(
            ASSEMBLY, "=&r,=&r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    else:
        codes = pairs.to(tl.int32)
        even, odd = _decode(codes & 0xFF, stored).to(wide), _decode((codes >> 8) & 0xFF, stored).to(wide)
    return even, odd


@triton.jit
def _decode(codes: tl.tensor, stored: tl.constexpr):
    """The float32 values of codes in int32."""
    if stored == tl.int8:
        values = ((codes ^ 0x80) - 0x80).to(tl.float32)
    else:
        SHIFT: tl.constexpr = 20 if stored == tl.float8e4nv else 21
        FACTOR: tl.constexpr = 2.0**120 if stored == tl.float8e4nv else 2.0**112
        bits = ((codes & 0x7F) << SHIFT) | ((codes & 0x80) << 24)
        values = bits.to(tl.float32, bitcast=True) * FACTOR
    return values
