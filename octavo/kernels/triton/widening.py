"""Device functions that widen 8-bit values of caches and weights, exactly.

To bfloat16 they are faster than the hardware's conversions, of which a multiprocessor does 16 a cycle.

A value's bits move to where the wider type has them, which leaves it too small by a power of two, subnormal values
included. ``widen_values`` corrects that with a multiplication; who takes ``move_pairs`` corrects queries and sums
instead. NaN is not kept by a cache's values, but by the scales of
:func:`octavo.kernels.triton.cache_scales.scale_of`.

Two neighbouring values of a head, a pair, are one word of 16 bits, which shared memory hands to the tensor cores'
operands as it does values of 16 bits, transposed ones included; single bytes would take a load each. A tile of pairs
has two parts, its even and its odd dimensions, and attention takes both in turn.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.launch import IS_INTERPRETED

_IN_ASSEMBLY: tl.constexpr = tl.constexpr(not IS_INTERPRETED)
_SIGNED_BYTES = (("0xA280", "0xB391"), ("0x9180", "0xB3A2"))
"""Two bytes, below eight copies of their signs each: the even ones and the odd ones, or in their order."""


@triton.constexpr_function
def _assembly(stored, wide):
    """Instructions that make four values (``$2``) two words of two (``$0``, ``$1``), in their order."""
    is_brain = wide == tl.bfloat16
    name = "bf16x2" if is_brain else "f16x2"
    if stored == tl.int8:
        # The upper bit of a code counts -128: it is once or twice the base, to which the lower bits are added.
        base, negative, factor = (
            (0x43004300, 0xC300C300, 0x3F803F80) if is_brain else (0x64006400, 0xE400E400, 0x3C003C00)
        )
        # Where codes lie in the lower bytes of 16 bits.
        codes = ("prmt.b32 code, $2, 0, 0x4140;", "prmt.b32 code, $2, 0, 0x4342;")
        widen = f"""
            and.b32 OUT, code, 0x007F007F;
            or.b32 OUT, OUT, {base};
            and.b32 rest, code, 0x00800080;
            or.b32 rest, rest, {negative};
            fma.rn.{name} OUT, OUT, factor, rest;"""
    else:
        shift, mask, factor = (4, 0x07F007F0, 0x7B807B80) if is_brain else (1, 0x3F803F80, 0x5C005C00)
        if stored == tl.float8e5:
            shift, mask, factor = (3, 0x0FE00FE0, 0x77807780) if is_brain else (0, 0x7F007F00, 0x3C003C00)
        # Where they lie in the upper bytes.
        codes = ("prmt.b32 code, $2, 0, 0x1404;", "prmt.b32 code, $2, 0, 0x3424;")
        widen = f"""
            and.b32 rest, code, 0x80008000;
            shr.b32 code, code, {shift};
            and.b32 code, code, {mask};
            or.b32 code, code, rest;
            fma.rn.{name} OUT, code, factor, zero;"""
    start = f"{{ .reg .b32 code, rest, factor, zero; mov.b32 factor, {factor}; mov.b32 zero, 0x80008000;"
    return start + codes[0] + widen.replace("OUT", "$0") + codes[1] + widen.replace("OUT", "$1") + "}"


@triton.constexpr_function
def moved_power(stored, wide):
    """The power of two by which :func:`move_pairs` leaves values too small."""
    if wide == tl.float32:
        power = 0
    elif wide == tl.bfloat16:
        power = 133 if stored == tl.int8 else 120 if stored == tl.float8e4nv else 112
        if IS_INTERPRETED:
            power = 24  # its bfloat16 has no subnormal values
    else:
        power = 24 if stored == tl.int8 else 8 if stored == tl.float8e4nv else 0
    return power


@triton.constexpr_function
def moves(stored, wide, *, in_order=False):
    """Instructions that move four values (``$2``) as two pairs: the even ones (``$0``) and the odd ones (``$1``).

    Args:
        in_order: whether the first two, and the last two, are the pairs instead; of float8.
    """
    is_brain = wide == tl.bfloat16
    if stored == tl.int8:
        # As bits of a subnormal number, the lower seven count as they are; the upper one counts -128, or -0.
        move = f"""
            and.b32 $OUT, code, 0x007F007F; lop3.b32 code, code, 0x00800080, 0x80008000, 0xEA;
            add.rn.{"bf16x2" if is_brain else "f16x2"} $OUT, $OUT, code;"""
        first, second = "mov.b32 code, $2;", "shr.b32 code, $2, 8;"
    elif stored == tl.float8e5 and not is_brain:
        move = ""
        first, second = "prmt.b32 $0, $2, 0, 0x2404;", "prmt.b32 $1, $2, 0, 0x3414;"
    else:
        # A value's byte below eight copies of its sign: shifted, one of these comes first.
        shift, mask = (7, 0xBF80BF80)
        if is_brain:
            shift, mask = (4, 0x87F087F0) if stored == tl.float8e4nv else (5, 0x8FE08FE0)
        move = f"shl.b32 code, code, {shift}; and.b32 $OUT, code, {mask};"
        first, second = (f"prmt.b32 code, $2, 0, {bytes_};" for bytes_ in _SIGNED_BYTES[in_order])
    return "{ .reg .b32 code;" + first + move.replace("OUT", "0") + second + move.replace("OUT", "1") + "}"


@triton.jit
def move_pairs(pairs: tl.tensor, stored: tl.constexpr, wide: tl.constexpr):
    """The even and the odd values of pairs, of a 16-bit type or float32, divided by 2 to the ``moved_power``.

    Args:
        pairs: int16.
        stored: the type of the values, of 8 bits.
    """
    if _IN_ASSEMBLY and wide != tl.float32:
        ASSEMBLY: tl.constexpr = moves(stored, wide)
        even, odd = tl.inline_asm_elementwise(
            ASSEMBLY, "=&r,=&r,r", [pairs], dtype=(wide.value, wide.value), is_pure=True, pack=2
        )
    else:
        codes = pairs.to(tl.int32)
        FACTOR: tl.constexpr = 2.0 ** -moved_power(stored, wide)
        even = (_decode(codes & 0xFF, stored) * FACTOR).to(wide)
        odd = (_decode((codes >> 8) & 0xFF, stored) * FACTOR).to(wide)
    return even, odd


@triton.jit
def widen_values(values: tl.tensor, wide: tl.constexpr):
    """Values of 8 bits in a 16-bit type or float32."""
    if _IN_ASSEMBLY and wide == tl.bfloat16:
        ASSEMBLY: tl.constexpr = _assembly(values.dtype, wide)
        result = tl.inline_asm_elementwise(ASSEMBLY, "=&r,=&r,r", [values], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        result = values.to(wide)
    return result


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
