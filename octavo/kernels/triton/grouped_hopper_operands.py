"""Codes and terms of :mod:`.grouped_hopper` from its ring to the operands of a warpgroup's MMAs, in registers.

Of a block, 64 rows of a step of 128 inputs, a thread has the codes that its MMA wants: rows ``r`` and ``r + 8``, and
of 16 neighbours the inputs ``2t``, ``2t + 1``, ``2t + 8`` and ``2t + 9``. Codes of 4 bits are words of eight, packed by
128 inputs (a thread's four words of a step lie together and have both halves of it) or by 32 (a word of each unit);
those of 8 bits are loaded in pairs.

A weight's *form* is a tuple of constants: bits of a code, inputs of a group, and what scales multiply: ``sums`` of
values, ``values``, or ``codes`` in the same instruction as takes off their zero; all of those have groups of a multiple
of 128 inputs. Values of smaller groups are multiplied and get ``offsets``, and those of 4-bit floats are multiplied by
``powers`` of two.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.grouped_unpack import (
    FLOAT_SCALE,
    FOLDED_SCALE,
    factor_pair,
    fold_terms,
    offset_pairs,
    power_pairs,
    unpack_half,
    unpack_pairs,
    unpack_terms,
    unpack_words,
)


@triton.constexpr_function
def sum_scale(scaling):
    """What the sums of values are to be multiplied by."""
    return {"codes": FOLDED_SCALE.value, "powers": FLOAT_SCALE}.get(scaling, 1.0)


@triton.constexpr_function
def has_halves(bits, group):
    """Whether the codes of each half of a step are loaded apart."""
    return bits == 8 or group < 128


@triton.constexpr_function
def _columns(bits, group):
    """Where a thread's codes of a step lie in a row of words, or of pairs of bytes.

    Returns:
        Their number, those that a thread has, and those of four neighbouring threads; as bits of the column.
    """
    if bits == 8:
        return 64, [4, 8, 16, 32], [1, 2]
    return (16, [1, 2], [4, 8]) if group >= 128 else (16, [4, 8], [1, 2])


@triton.constexpr_function
def _code_layout(bits, group):
    """How threads hold a block's codes of a step, or if :func:`has_halves` of half of one: ``[64, n]``."""
    size, own, others = _columns(bits, group)
    if has_halves(bits, group):
        size, own = size // 2, own[:-1]
    registers = [[0, column] for column in own] + [[8, 0]]
    lanes = [[0, column] for column in others] + [[1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, size])


@triton.constexpr_function
def _rows(factors):
    """Rows of a block as they lie in the ring, ``[factors, 64 / factors]``: a thread has rows of both factors."""
    if factors == 1:
        return [0, 8], [[0, 1], [0, 2], [0, 4]], [[0, 16], [0, 32]]
    return [1, 0], [[0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16]]


@triton.constexpr_function
def _slot_layout(bits, group, factors):
    """The layout of a step's codes as they lie in the ring, ``[factors, 64 / factors, n]``."""
    size, own, others = _columns(bits, group)
    second, lane_rows, warp_rows = _rows(factors)
    registers = [[0, 0, column] for column in own] + [second + [0]]
    lanes = [[0, 0, column] for column in others] + [row + [0] for row in lane_rows]
    warps = [row + [0] for row in warp_rows]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [factors, 64 // factors, size])


@triton.constexpr_function
def _term_slot_layout(factors, words):
    """Likewise of terms, ``[factors, 8 / factors, 8 rows x words]``."""
    registers = [[0, 0, 1 << i] for i in range(words.bit_length() - 1)]
    registers += [[0, 1, 0] if factors == 1 else [1, 0, 0]]
    lanes = [[0, 0, 0], [0, 0, 0]] + [[0, 0, words << i] for i in range(3)]
    warps = [[0, 2, 0], [0, 4, 0]] if factors == 1 else [[0, 1, 0], [0, 2, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [factors, 8 // factors, 8 * words])


@triton.constexpr_function
def _word_layout(words):
    """How threads hold the terms of a block's rows, ``[64, words]``."""
    registers = [[0, 1 << i] for i in range(words.bit_length() - 1)] + [[8, 0]]
    lanes = [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, words])


@triton.constexpr_function
def _spread_layout(bits, group, groups):
    """:func:`_code_layout` with the columns of each group apart, ``[64, groups, n]``."""
    codes = _code_layout(bits, group)
    size = codes.shape[1] // groups
    registers, lanes, warps = (
        [[row, column // size, column % size] for row, column in bases]
        for bases in (codes.reg_bases, codes.lane_bases, codes.warp_bases)
    )
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [64, groups, size])


@gluon.jit
def load_terms(rings, slot, form: gl.constexpr):
    """The terms of a block's rows: words of small groups or powers of a step, else scales and zeros ``[64]``."""
    x_ring, code_ring, term_ring, _, _ = rings
    factors: gl.constexpr = code_ring.shape[1]
    words: gl.constexpr = term_ring.shape[3] // 8
    dtype: gl.constexpr = x_ring.dtype
    terms = term_ring.index(slot).load(_term_slot_layout(factors, words))
    if factors == 2:
        terms = terms.permute((1, 0, 2))
    if form[2] == "offsets":
        found = gl.convert_layout(terms.reshape((64, words)), _word_layout(words), assert_trivial=True)
    elif form[2] == "powers":
        found = gl.convert_layout(terms.reshape((64,)), gl.SliceLayout(1, _word_layout(2)), assert_trivial=True)
    else:
        row_layout: gl.constexpr = gl.SliceLayout(1, _code_layout(form[0], form[1]))
        found = gl.convert_layout(terms.reshape((64,)), row_layout, assert_trivial=True)
        scale, zero = unpack_terms(found, dtype, form[0])
        if form[2] == "values":
            scale = factor_pair(scale, dtype)
        elif form[2] == "codes":
            scale, zero = fold_terms(scale, zero)
        found = scale, zero
    return found


@gluon.jit
def load_codes(rings, slot, HALF: gl.constexpr, form: gl.constexpr):
    """A block's codes of a step, or if :func:`has_halves` of one half of it, as :func:`_code_layout` places them."""
    _, code_ring, _, _, _ = rings
    factors: gl.constexpr = code_ring.shape[1]
    columns: gl.constexpr = code_ring.shape[3]
    codes = code_ring.index(slot).load(_slot_layout(form[0], form[1], factors))
    if factors == 2:
        codes = codes.reshape((2, 4, 8, columns)).permute((1, 0, 2, 3))
    if has_halves(form[0], form[1]):
        halves = codes.reshape((64, 2, columns // 2)).permute((0, 2, 1)).split()
        codes = halves[HALF]
    else:
        codes = codes.reshape((64, columns))
    return gl.convert_layout(codes, _code_layout(form[0], form[1]), assert_trivial=True)


@gluon.jit
def _spread(terms, form: gl.constexpr):
    """Terms of the groups of half a step, ``[64, groups]``, for each of its codes."""
    groups: gl.constexpr = terms.shape[1]
    layout: gl.constexpr = _spread_layout(form[0], form[1], groups)
    columns: gl.constexpr = _code_layout(form[0], form[1]).shape[1]
    terms = gl.convert_layout(terms, gl.SliceLayout(2, layout), assert_trivial=True)[:, :, None]
    terms, _ = gl.broadcast(terms, gl.zeros([64, groups, columns // groups], gl.int32, layout))
    return gl.convert_layout(terms.reshape((64, columns)), _code_layout(form[0], form[1]), assert_trivial=True)


@gluon.jit
def unpack_values(codes, terms, HALF: gl.constexpr, form: gl.constexpr, layout: gl.constexpr, dtype: gl.constexpr):
    """Half of a block's values, ``[64, 64]``, as an operand in registers."""
    if form[2] == "powers":
        first, second = power_pairs(terms, HALF, dtype)
        values = unpack_words(codes, _spread(gl.join(first, second), form), None, "float4", dtype)
        values = _in_order(values)
    elif form[2] == "offsets":
        groups: gl.constexpr = terms.shape[1]
        halves = terms.reshape((64, 2, groups // 2)).permute((0, 2, 1)).split()
        scales, offsets = offset_pairs(halves[HALF], dtype)
        scales, offsets = _spread(scales, form), _spread(offsets, form)
        if form[0] == 4:
            values = _in_order(unpack_words(codes, scales, offsets, "offset", dtype))
        else:
            values = unpack_pairs(codes, offsets, scales, "offsets", dtype)
    else:
        factors, _ = gl.broadcast(terms[0][:, None], codes)
        zeros, _ = gl.broadcast(terms[1][:, None], codes)
        if form[0] == 4:
            values = unpack_half(codes, zeros, factors, HALF, form[2], dtype)
        else:
            values = unpack_pairs(codes, zeros, factors, form[2], dtype)
    return gl.convert_layout(values, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)


@gluon.jit
def _in_order(values):
    """Values of :func:`.grouped_unpack.unpack_words`, of words of two units, in the order of their inputs."""
    a, b, c, d, e, f, g, h = values
    low, high = gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h))
    values = gl.join(low, high).reshape((64, 2, 4, 2, 2, 2))
    return values.permute((0, 4, 5, 3, 2, 1)).reshape((64, 64))
