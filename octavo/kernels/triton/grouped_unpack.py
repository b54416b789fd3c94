"""Codes in registers to the whole numbers, or small floats, that tensor cores multiply; for kernels in Gluon.

Four codes are unpacked at a time by operations on 32 bits. A code is put into the low bits of a float with a fixed
exponent, and a subtraction of two floats at a time leaves its value.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.widening import moves

_INT4 = """{{
.reg .b32 low, high, one;
shl.b32 low, $4, 3;
shr.u32 high, $4, 1;
lop3.b32 low, low, 0x78787878, {fixed}, 0xEA;
lop3.b32 high, high, 0x78787878, {fixed}, 0xEA;
mov.b32 one, {one};
prmt.b32 $0, low, one, 0x4240;
prmt.b32 $1, low, one, 0x4341;
prmt.b32 $2, high, one, 0x4240;
prmt.b32 $3, high, one, 0x4341;
sub.rn.{dtype} $0, $0, $5;
sub.rn.{dtype} $1, $1, $5;
sub.rn.{dtype} $2, $2, $5;
sub.rn.{dtype} $3, $3, $5;
}}"""
"""Four bytes to the values of their low halves and of their high halves, less their zero (a pair; see `zero_pair`).

The last place of the floats is an eighth, the step of zeros: 16 + code in bfloat16, 128 + code in float16.
"""

_FLOAT4 = """{{
.reg .b32 up, p, q, one;
shl.b32 up, $4, 4;
mov.b32 one, {one};
prmt.b32 p, up, 0, 0x2404;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $0, p, one;
prmt.b32 p, up, 0, 0x3414;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $1, p, one;
prmt.b32 p, $4, 0, 0x2404;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $2, p, one;
prmt.b32 p, $4, 0, 0x3414;
shr.u32 q, p, {shift};
and.b32 q, q, {mask};
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.{dtype} $3, p, one;
}}"""
"""Likewise for floats: sign, exponent and fraction are moved to their places, the exponents' biases differ."""

_INT4_WIDE = gl.constexpr(_INT4.format(one="0x41414141", fixed="0x80808080", dtype="bf16x2"))
_INT4_HALF = gl.constexpr(_INT4.format(one="0x58585858", fixed="0", dtype="f16x2"))
_FLOAT4_WIDE = gl.constexpr(_FLOAT4.format(one="0x7E807E80", shift=6, mask="0x01C001C0", dtype="bf16x2"))
_FLOAT4_HALF = gl.constexpr(_FLOAT4.format(one="0x74007400", shift=3, mask="0x0E000E00", dtype="f16x2"))

UNIT_SCALE = 512.0
"""What sums of :func:`unpack_units` are to be multiplied by: it is the inverse of the step of its values."""

_HALVES = (("{word}", "0x000F000F"), ("next", "0x000F000F"), ("{word}", "0x00F000F0"), ("next", "0x00F000F0"))
_WORD = "\nshr.u32 next, {word}, 8;\n" + "".join(
    f"""and.b32 part, {source}, {mask};
fma.rn.{{dtype}} {{outs[{place}]}}, part, {"low" if mask.endswith("F") else "high"}, {{zero}};
"""
    for place, (source, mask) in enumerate(_HALVES)
)
"""Four bytes to the values of their low and high halves, less their zero, in steps of :data:`UNIT_SCALE`'s inverse.

A code in the low bits of 16 is a subnormal float, or one of the first normal ones, whose steps are the same.
"""
_OFFSET_WORD = _WORD + "".join(
    f"fma.rn.{{dtype}} {{outs[{place}]}}, {{outs[{place}]}}, {{term}}, {{offset}};\n" for place in range(4)
)
"""The same times a factor, plus an offset."""
_RAW_WORD = "\nshr.u32 next, {word}, 8;\n" + "".join(
    f"and.b32 {{outs[{place}]}}, {source}, {mask};\n" for place, (source, mask) in enumerate(_HALVES)
)
"""Codes as subnormal floats, those of high halves four bits higher."""


@triton.constexpr_function
def _scaled(value, code, scaling, dtype, step, zero, factor):
    """Instructions that make codes, as subnormal floats, values over :data:`UNIT_SCALE`, or those times a factor.

    With offsets, these are in the place of zeros, and those are the middle of the codes.
    """
    line = f"fma.rn.{dtype} {value}, {code}, {step}, {'middle' if scaling == 'offsets' else zero};\n"
    if scaling == "offsets":
        line += f"fma.rn.{dtype} {value}, {value}, {factor}, {zero};\n"
    return line + (f"mul.rn.{dtype} {value}, {value}, {factor};\n" if scaling == "values" else "")


@triton.constexpr_function
def _half_of_words(half, scaling, is_wide):
    """Likewise for their low halves, or high ones, only; or for those times a factor."""
    dtype = "bf16x2" if is_wide else "f16x2"
    mask = ("0x000F000F", "0x00F000F0")[half]
    step = (("0x78007800", "0x68006800"), ("0x7D807D80", "0x7B807B80"))[is_wide][half]
    lines = ".reg .b32 next, part, step;\n"
    if scaling != "codes":
        lines += f"mov.b32 step, {step};\n"
    elif half == 0:
        lines += "mov.b32 step, $8;\n"
    else:
        lines += f"mov.b32 step, 0x3D803D80;\nmul.rn.{dtype} step, step, $8;\n"  # codes are 16 times as large
    for i in (0, 1):
        lines += f"shr.u32 next, ${4 + i}, 8;\n"
        for j, source in ((0, f"${4 + i}"), (1, "next")):
            lines += f"and.b32 part, {source}, {mask};\n" + _scaled(
                f"${2 * i + j}", "part", scaling, dtype, "step", "$6", "$8"
            )
    return "{" + lines + "}"


@triton.constexpr_function
def _pair_of_bytes(scaling, is_wide):
    """Likewise for two bytes, each in the low half of 16 bits."""
    dtype = "bf16x2" if is_wide else "f16x2"
    step = "$4" if scaling == "codes" else "step"
    lines = f"""
    .reg .b32 pair, step, middle;
    mov.b32 step, {"0x7D807D80" if is_wide else "0x78007800"};
    mov.b32 middle, {"0xBE80BE80" if is_wide else "0xB400B400"};
    cvt.u32.u16 pair, $2;
    prmt.b32 pair, pair, 0, 0x4140;
    """
    return "{" + lines + _scaled("pair", "pair", scaling, dtype, step, "$3", "$4") + "mov.b32 {$0, $1}, pair;}"


_FLOAT_WORD = "\nshr.u32 next, {word}, 8;\n" + "".join(
    f"""and.b32 part, {source}, {mask};
mul.lo.u32 part, part, {"0x1040" if mask.endswith("F") else "0x104"};
and.b32 part, part, 0x81C081C0;
mul.rn.{{dtype}} {{outs[{place}]}}, part, {{term}};
"""
    for place, (source, mask) in enumerate(_HALVES)
)
"""Likewise for floats, times a factor: a product puts the code in two places, of which one has its sign, and the other
its exponent and fraction, where bfloat16 has them."""


def _two_words(instructions: str, dtype: str, low: str = "0", high: str = "0", zero: str = "") -> gl.constexpr:
    """Instructions for two words (``$8``, ``$9``), their terms (``$10``, ``$11``) and offsets (``$12``, ``$13``).

    Args:
        zero: what is added to codes; empty for the terms.
    """
    text = f"{{.reg .b32 next, part, low, high, zero;\nmov.b32 low, {low};\nmov.b32 high, {high};\n"
    text += f"mov.b32 zero, {zero};\n" if zero else ""
    for word, outs in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
        text += instructions.format(
            dtype=dtype,
            word=f"${8 + word}",
            term=f"${10 + word}",
            offset=f"${12 + word}",
            zero="zero" if zero else f"${10 + word}",
            outs=[f"${out}" for out in outs],
        )
    return gl.constexpr(text + "}")


@triton.constexpr_function
def _terms_of(bits, is_wide):
    """A scale, and twice the negative zero in steps of :data:`UNIT_SCALE`'s inverse; its byte is a subnormal float."""
    step = (("0xEC00EC00", "0xF800F800"), ("0xFC00FC00", "0xFD80FD80"))[is_wide][bits == 8]
    return f"""{{
    .reg .b32 pair, step;
    mov.b32 step, {step};
    and.b32 $0, $2, 0xFFFFFF00;
    and.b32 pair, $2, 0xFF;
    mul.lo.u32 pair, pair, 0x10001;
    mul.rn.{"bf16x2" if is_wide else "f16x2"} $1, pair, step;
    }}"""


_UNITS_WIDE = _two_words(_WORD, "bf16x2", "0x7D807D80", "0x7B807B80")
_UNITS_HALF = _two_words(_WORD, "f16x2", "0x78007800", "0x68006800")
_OFFSETS_WIDE = _two_words(_OFFSET_WORD, "bf16x2", "0x7D807D80", "0x7B807B80", zero="0xBC80BC80")
_OFFSETS_HALF = _two_words(_OFFSET_WORD, "f16x2", "0x78007800", "0x68006800", zero="0xA400A400")
FLOAT_SCALE = 2.0**32
"""What sums of scaled 4-bit floats are to be multiplied by, so that bfloat16 has all factors."""
_FLOATS_WIDE = _two_words(_FLOAT_WORD, "bf16x2")
_RAW = _two_words(_RAW_WORD, "bf16x2")


@gluon.jit
def zero_pair(eighths, dtype: gl.constexpr):
    """Zeros in eighths as :func:`unpack_halves` takes them: twice the float of the same offset as codes have, int32."""
    first: gl.constexpr = 0x4180 if dtype == gl.bfloat16 else 0x5800
    return (eighths.to(gl.int32) + first) * 0x10001


@gluon.jit
def unpack_halves(codes, zeros, dtype: gl.constexpr):
    """Bytes of two codes each → the values of their low halves and of their high halves.

    Of each four bytes that a thread has together, those of the middle change places: then neighbours follow each other.

    Args:
        zeros: of :func:`zero_pair`, equal for each four bytes that a thread has together; None for floats.
    """
    is_wide: gl.constexpr = dtype == gl.bfloat16
    floats: gl.constexpr = _FLOAT4_WIDE if is_wide else _FLOAT4_HALF
    integers: gl.constexpr = _INT4_WIDE if is_wide else _INT4_HALF
    one: gl.constexpr = gl.bfloat16 if is_wide else gl.float16
    if zeros is None:
        halves = gl.inline_asm_elementwise(
            floats, "=r,=r,=r,=r,r", [codes], dtype=(one.value, one.value), is_pure=True, pack=4
        )
    else:
        halves = gl.inline_asm_elementwise(
            integers, "=r,=r,=r,=r,r,r,r,r,r", [codes, zeros], dtype=(one.value, one.value), is_pure=True, pack=4
        )
    return halves


_MOVED_INTEGERS = "prmt.b32 $0, $2, 0, 0x4140; prmt.b32 $1, $2, 0, 0x4342;" + "".join(
    f"fma.rn.{{dtype}} ${i}, ${i}, step, middle;" for i in (0, 1)
)
"""Four bytes less 128, over :data:`UNIT_SCALE`: as bits of 16, they are subnormal floats, or the first normal ones."""


def _moved_integers(dtype: str, step: str, middle: str) -> gl.constexpr:
    start = f"{{.reg .b32 step, middle; mov.b32 step, {step}; mov.b32 middle, {middle};"
    return gl.constexpr(start + _MOVED_INTEGERS.format(dtype=dtype) + "}")


_MOVED_INTEGERS_WIDE = _moved_integers("bf16x2", "0x7D807D80", "0xBE80BE80")
_MOVED_INTEGERS_HALF = _moved_integers("f16x2", "0x78007800", "0xB400B400")


@triton.constexpr_function
def moved_factors(stored, wide):
    """What to multiply inputs by, and sums, for values of :func:`move_bytes`."""
    if stored == gl.uint8:
        return 1.0, UNIT_SCALE
    # Sums of products with values of 2⁻¹²⁰ would be subnormal.
    return (2.0**60, 2.0**60) if wide == gl.bfloat16 else (1.0, 2.0**8)


@gluon.jit
def move_bytes(codes, dtype: gl.constexpr):
    """Integers of 8 bits less 128, or e4m3 values, too small by the product of :func:`moved_factors`."""
    is_wide: gl.constexpr = dtype == gl.bfloat16
    integers: gl.constexpr = _MOVED_INTEGERS_WIDE if is_wide else _MOVED_INTEGERS_HALF
    floats: gl.constexpr = moves(gl.float8e4nv, dtype, in_order=True)
    assembly: gl.constexpr = integers if codes.dtype == gl.uint8 else floats
    one: gl.constexpr = gl.bfloat16 if is_wide else gl.float16
    return gl.inline_asm_elementwise(assembly, "=&r,=&r,r", [codes], dtype=one.value, is_pure=True, pack=4)


@gluon.jit
def unpack_terms(words, dtype: gl.constexpr, BITS: gl.constexpr = 4):
    """Words of a scale and a zero → scales, float32, and zeros as those that unpack codes take them, int32.

    Zeros of codes of 4 bits are in eighths, those of 8 bits whole.
    """
    assembly: gl.constexpr = _terms_of(BITS, dtype == gl.bfloat16)
    return gl.inline_asm_elementwise(assembly, "=r,=r,r", [words], dtype=(gl.float32, gl.int32), is_pure=False, pack=1)


@gluon.jit
def float_pair(exponents, dtype: gl.constexpr):
    """Exponents of scales as :func:`unpack_words` takes them: twice the factor, over :data:`FLOAT_SCALE`, int32."""
    gl.static_assert(dtype == gl.bfloat16)
    return ((exponents.to(gl.int32) + (126 - 32)) << 7) * 0x10001


@gluon.jit
def integer_pair(eighths, dtype: gl.constexpr):
    """Zeros in eighths as :func:`unpack_words` takes them: twice the negative zero over :data:`UNIT_SCALE`, int32."""
    _, pairs = unpack_terms(eighths.to(gl.int32), dtype)
    return pairs


@triton.constexpr_function
def _pair_of_powers(half):
    """Two of the four exponents in a word as :func:`float_pair` makes them: a byte in both halves of 16 bits first."""
    lines = "".join(
        f"prmt.b32 ${i}, $2, 0, 0x4{2 * half + i}4{2 * half + i}; mad.lo.u32 ${i}, ${i}, 128, 0x2F002F00;"
        for i in (0, 1)
    )
    return "{" + lines + "}"


@gluon.jit
def power_pairs(words, HALF: gl.constexpr, dtype: gl.constexpr):
    """Words of four exponents → two tensors of :func:`float_pair`, of the first or the last two."""
    gl.static_assert(dtype == gl.bfloat16)
    assembly: gl.constexpr = _pair_of_powers(HALF)
    return gl.inline_asm_elementwise(assembly, "=&r,=&r,r", [words], dtype=(gl.int32, gl.int32), is_pure=False, pack=1)


_OFFSET_PAIRS_WIDE = gl.constexpr("""{
.reg .f16 scale, offset;
.reg .f32 wide;
mov.b32 {scale, offset}, $2;
cvt.f32.f16 wide, scale;
cvt.rn.bf16x2.f32 $0, wide, wide;
cvt.f32.f16 wide, offset;
cvt.rn.bf16x2.f32 $1, wide, wide;
}""")
_OFFSET_PAIRS_HALF = gl.constexpr("prmt.b32 $0, $2, 0, 0x1010; prmt.b32 $1, $2, 0, 0x3232;")


@gluon.jit
def offset_pairs(words, dtype: gl.constexpr):
    """Words of a scale and an offset, float16 → each of them twice, int32."""
    assembly: gl.constexpr = _OFFSET_PAIRS_WIDE if dtype == gl.bfloat16 else _OFFSET_PAIRS_HALF
    return gl.inline_asm_elementwise(assembly, "=&r,=&r,r", [words], dtype=(gl.int32, gl.int32), is_pure=False, pack=1)


@gluon.jit
def widen_pairs(words):
    """Words of a scale and an offset, float16 → both in float32."""
    return gl.inline_asm_elementwise(
        "{.reg .f16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;}",
        "=f,=f,r",
        [words],
        dtype=(gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def unpack_words(words, pairs, offsets, FORM: gl.constexpr, dtype: gl.constexpr):
    """Words of eight codes → eight tensors of values, of which a thread's two neighbours are those of one word.

    A word's codes are in the order of :func:`octavo.kernels.grouped.byte_order`. Of two words, the low halves of the
    first one's even and odd bytes come first, then those of the second; then the high halves likewise.

    Args:
        pairs: of :func:`integer_pair`, :func:`float_pair` or :func:`offset_pairs`, for each word.
        offsets: of :func:`offset_pairs`; otherwise None.
        FORM: ``int4`` less zeros; ``raw`` for integers as subnormal bfloat16; ``float4``; or ``offset``: integers less
            8, times scales, plus offsets.

    Returns:
        Values over :data:`UNIT_SCALE`; floats are scaled and over :data:`FLOAT_SCALE`. With offsets, scales make up
        for it.
    """
    is_wide: gl.constexpr = dtype == gl.bfloat16
    one: gl.constexpr = gl.bfloat16 if is_wide else gl.float16
    if FORM == "offset":
        shifted: gl.constexpr = _OFFSETS_WIDE if is_wide else _OFFSETS_HALF
        values = gl.inline_asm_elementwise(
            shifted,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r",
            [words, pairs, offsets],
            dtype=(one.value,) * 8,
            is_pure=False,
            pack=2,
        )
    else:
        integers: gl.constexpr = _UNITS_WIDE if is_wide else _UNITS_HALF
        assembly: gl.constexpr = integers if FORM == "int4" else _RAW if FORM == "raw" else _FLOATS_WIDE
        values = gl.inline_asm_elementwise(
            assembly,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r",
            [words, pairs],
            dtype=(one.value,) * 8,
            is_pure=False,
            pack=2,
        )
    return values


@gluon.jit
def unpack_units(words, zeros, dtype: gl.constexpr):
    """Words of packed units, ``[..., 16]`` → their values, ``[..., 128]``.

    A thread has the four words of a quarter, in their order. Values are multiples of ``1 / UNIT_SCALE``.
    """
    a, b, c, d, e, f, g, h = unpack_words(words, zeros, None, "int4", dtype)
    # Words come in pairs: first halves in the first four, of those a word's runs of neighbours follow each other.
    first, second = gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h))
    values = gl.join(first, second)
    warps: gl.constexpr = values.shape[0]
    rows: gl.constexpr = values.shape[1]
    values = values.reshape((warps, rows, 4, 2, 2, 2, 2, 2)).permute((0, 1, 7, 3, 6, 5, 2, 4))
    return values.reshape((warps, rows, 128))


FOLDED_SCALE = gl.constexpr(2.0**40)
"""What sums of values with folded factors are to be multiplied by, so that bfloat16 has all factors."""


@gluon.jit
def fold_terms(scales, zeros):
    """Terms of :func:`unpack_terms` as factors of codes and what is added to the products: bfloat16, twice, int32.

    The products of factors and zeros must be exact: zeros are powers of two.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 pair, power;
        cvt.rn.bf16x2.f32 pair, $2, $2;
        mov.b32 power, 0x69806980;
        mul.rn.bf16x2 $0, pair, power;
        mov.b32 power, 0x2B802B80;
        mul.rn.bf16x2 pair, pair, power;
        mul.rn.bf16x2 $1, pair, $3;
        }""",
        "=&r,=&r,r,r",
        [scales, zeros],
        dtype=(gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def factor_pair(scales, dtype: gl.constexpr):
    """Scales of :func:`unpack_terms` as factors of values: twice the rounded scale, int32."""
    wide: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $1, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $1, $1;"
    return gl.inline_asm_elementwise(wide, "=r,r", [scales], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def unpack_half(words, zeros, factors, HALF: gl.constexpr, SCALING: gl.constexpr, dtype: gl.constexpr):
    """Words of packed units, ``[rows, 16]`` → the values of their first or second half, ``[rows, 64]``.

    A thread has the four words of a quarter, in their order.

    Args:
        zeros: of :func:`unpack_terms` or :func:`fold_terms`, equal for the words of a row.
        factors: likewise of :func:`factor_pair` or :func:`fold_terms`; ignored if ``SCALING`` is ``sums``.
        SCALING: what scales multiply: ``sums`` of values over :data:`UNIT_SCALE`, those ``values``, or ``codes``, of
            bfloat16; then values are over :data:`FOLDED_SCALE`.
    """
    rows: gl.constexpr = words.shape[0]
    assembly: gl.constexpr = _half_of_words(HALF, SCALING, dtype == gl.bfloat16)
    one: gl.constexpr = gl.bfloat16 if dtype == gl.bfloat16 else gl.float16
    a, b, c, d = gl.inline_asm_elementwise(
        assembly,
        "=r,=r,=r,=r,r,r,r,r,r,r",
        [words, zeros, factors],
        dtype=(one.value,) * 4,
        is_pure=False,
        pack=2,
    )
    values = gl.join(gl.join(a, b), gl.join(c, d)).reshape((rows, 4, 2, 2, 2, 2))
    return values.permute((0, 2, 5, 4, 1, 3)).reshape((rows, 64))


@gluon.jit
def unpack_pairs(pairs, zeros, factors, SCALING: gl.constexpr, dtype: gl.constexpr):
    """Pairs of bytes, ``[rows, n]`` int16 → their values, ``[rows, 2 n]``; with arguments of :func:`unpack_half`."""
    assembly: gl.constexpr = _pair_of_bytes(SCALING, dtype == gl.bfloat16)
    one: gl.constexpr = gl.bfloat16 if dtype == gl.bfloat16 else gl.float16
    first, second = gl.inline_asm_elementwise(
        assembly, "=h,=h,h,r,r", [pairs, zeros, factors], dtype=(one.value,) * 2, is_pure=False, pack=1
    )
    return gl.join(first, second).reshape((pairs.shape[0], 2 * pairs.shape[1]))
