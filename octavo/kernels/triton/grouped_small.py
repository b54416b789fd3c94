"""Rounds of :mod:`.grouped_bytes` whose weights have groups of 16 or 32 inputs: each group's sums are scaled apart.

Of a round, each of four parts, of 128 inputs, belongs to a warp. Its groups become further entries of the MMA's batched
dimension, ``4 · group + part``, so that they stay in their warp, in registers. An offset is multiplied by the sum of a
group's inputs, which an MMA with ones computes.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from octavo.kernels.triton.grouped_unpack import move_bytes, unpack_words, widen_pairs

_UNIT = gl.constexpr(128)
"""Inputs of a part."""


@triton.constexpr_function
def adjacent_inputs(bits, group):
    """Adjacent inputs of a thread in both operands: two of packed words; runs of a group's four threads of bytes."""
    return 2 if bits == 4 else group // 4


@triton.constexpr_function
def _own_rows(num_warps, rows):
    """Rows of a thread's registers, lanes and warps in an MMA's first operand and its sums."""
    row_warps = num_warps // 4
    registers = [8] + [16 * row_warps << i for i in range((rows // (16 * row_warps)).bit_length() - 1)]
    return registers, [1, 2, 4], [16 << i for i in range(row_warps.bit_length() - 1)]


@triton.constexpr_function
def _word_layout(num_warps, rows):
    """How threads hold words ``[parts, rows, 16]``: of each unit of four, the one that the MMA wants."""
    registers, lanes, warps = _own_rows(num_warps, rows)
    return gl.DistributedLinearLayout(
        [[0, 0, 4], [0, 0, 8]] + [[0, row, 0] for row in registers],
        [[0, 0, 1], [0, 0, 2]] + [[0, row, 0] for row in lanes],
        [[0, row, 0] for row in warps] + [[1, 0, 0], [2, 0, 0]],
        [],
        [4, rows, 16],
    )


@triton.constexpr_function
def _term_layout(num_warps, rows, groups):
    """How they hold terms ``[parts, rows, groups]``: all groups of the rows of their sums."""
    registers, lanes, warps = _own_rows(num_warps, rows)
    return gl.DistributedLinearLayout(
        [[0, 0, 1 << i] for i in range(groups.bit_length() - 1)] + [[0, row, 0] for row in registers],
        [[0, 0, 0], [0, 0, 0]] + [[0, row, 0] for row in lanes],
        [[0, row, 0] for row in warps] + [[1, 0, 0], [2, 0, 0]],
        [],
        [4, rows, groups],
    )


@triton.constexpr_function
def is_raw(form, dtype):
    """Whether codes are multiplied as they are: those of 4 bits are subnormal bfloat16, which float16 has no range for.

    In steps of 2⁻¹³³, and those of the high halves in steps 16 times as large; inputs make up for it.
    """
    return form[1] == 4 and dtype == gl.bfloat16


@triton.constexpr_function
def sum_factor(form, dtype):
    """What sums are to be multiplied by."""
    return 2.0**64 if is_raw(form, dtype) else 1.0


@gluon.jit
def fit_inputs(values, column, form: gl.constexpr):
    """Inputs of a single row, of these columns, that make up for raw codes."""
    if is_raw(form, values.dtype):
        values *= gl.where(column % 32 < 16, 2.0**60, 2.0**56).to(values.dtype)
    return values


@gluon.jit
def _by_half(
    low: gl.constexpr,
    high: gl.constexpr,
    shape: gl.constexpr,
    axis: gl.constexpr,
    dtype: gl.constexpr,
    layout: gl.constexpr,
):
    """An operand with one number for the first 16 of each group's 32 inputs, along an axis, and one for the others."""
    if axis == 1:
        inner: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, layout))
        k = gl.arange(0, 32, inner)[None, :, None]
    else:
        outer: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, layout))
        k = gl.arange(0, 32, outer)[None, None, :]
    is_low, _ = gl.broadcast(k < 16, gl.zeros(shape, gl.int1, layout))
    return gl.where(is_low, low, high).to(dtype)


@gluon.jit
def _load_weights(code_slot, form: gl.constexpr, mma: gl.constexpr, dtype: gl.constexpr):
    """A round's codes, or values less their middle over ``UNIT_SCALE``: ``[4 groups, rows, GROUP]``."""
    GROUP: gl.constexpr = form[0]
    rows: gl.constexpr = code_slot.shape[1]
    groups: gl.constexpr = _UNIT // GROUP
    operand: gl.constexpr = gl.DotOperandLayout(0, mma, adjacent_inputs(form[1], GROUP))
    if form[1] == 4:
        words = code_slot.load(_word_layout(gl.num_warps(), rows))
        if is_raw(form, dtype):
            values = unpack_words(words, words, None, "raw", dtype)
        else:
            middles = gl.full([4, rows, 16], -0x5BFF5C00, gl.int32, words.type.layout)  # twice -8 / UNIT_SCALE
            values = unpack_words(words, middles, None, "int4", dtype)
        a, b, c, d, e, f, g, h = values
        low, high = gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h))
        # Neighbours are in the places of two units' words.
        values = gl.join(low, high).reshape((4, rows, 2, 2, 4, 2, 2, 2)).permute((2, 6, 0, 1, 7, 5, 4, 3))
    else:
        values = move_bytes(code_slot.load(operand), dtype).reshape((4, rows, groups, GROUP)).permute((2, 0, 1, 3))
    return gl.convert_layout(values.reshape((4 * groups, rows, GROUP)), operand, assert_trivial=True)


@gluon.jit
def _by_group(values, form: gl.constexpr, layout: gl.constexpr):
    """A round's inputs ``[4, 128, columns]``, as ``[4 groups, GROUP, columns]``, which make up for raw codes.

    Those of a single row do so already; see :func:`fit_inputs`.
    """
    GROUP: gl.constexpr = form[0]
    groups: gl.constexpr = _UNIT // GROUP
    columns: gl.constexpr = values.shape[2]
    values = values.reshape((4, groups, GROUP, columns)).permute((1, 0, 2, 3))
    values = gl.convert_layout(values.reshape((4 * groups, GROUP, columns)), layout, assert_trivial=True)
    if is_raw(form, values.dtype) and not form[3]:
        values *= _by_half(2.0**60, 2.0**56, values.shape, 1, values.dtype, layout)
    return values


@gluon.jit
def _own_columns(sums, form: gl.constexpr):
    """Sums ``[parts, rows, columns]``; of a single row, which all columns have multiplied, every second column."""
    if form[3]:
        pairs = sums.reshape((sums.shape[0], sums.shape[1], sums.shape[2] // 2, 2))
        sums, _ = pairs.split()
    return sums


@gluon.jit
def no_sums(rows: gl.constexpr, columns: gl.constexpr, form: gl.constexpr, mma: gl.constexpr):
    """Sums to begin with, by group and part: ``[4 groups, rows, columns]``, or half of the columns of a single row."""
    return _own_columns(gl.zeros([4 * (_UNIT // form[0]), rows, columns], gl.float32, mma), form)


@gluon.jit
def multiply_groups(total, code_slot, term_slot, values, form: gl.constexpr, mma: gl.constexpr):
    """Add a round's sums, by group and part, to those of :func:`no_sums`.

    Args:
        term_slot: ``[4, rows, groups]``; see :mod:`.grouped_terms`.
        values: inputs, ``[4, 128, columns]``.
        form: inputs of a group, bits of a code, whether there are offsets, and whether ``x`` is a single row.
    """
    GROUP: gl.constexpr = form[0]
    groups: gl.constexpr = _UNIT // GROUP
    rows: gl.constexpr = code_slot.shape[1]
    dtype: gl.constexpr = values.dtype
    adjacent: gl.constexpr = adjacent_inputs(form[1], GROUP)
    first: gl.constexpr = gl.DotOperandLayout(0, mma, adjacent)
    weights = _load_weights(code_slot, form, mma, dtype)
    values = _by_group(values, form, gl.DotOperandLayout(1, mma, adjacent))
    terms = term_slot.load(_term_layout(gl.num_warps(), rows, groups)).permute((2, 0, 1)).reshape((4 * groups, rows))
    scales, offsets = widen_pairs(gl.convert_layout(terms, gl.SliceLayout(2, total.type.layout), assert_trivial=True))
    none = gl.zeros([4 * groups, rows, values.shape[2]], gl.float32, mma)
    total += scales[:, :, None] * _own_columns(mma_v2(weights, values, none), form)
    if is_raw(form, dtype):
        # Sums of inputs are in the steps of codes' sums, and codes have a middle of 8.
        ones = _by_half(2.0**-124, 2.0**-120, weights.shape, 2, dtype, first)
        offsets -= scales * (1.0 / 64)
        total += offsets[:, :, None] * _own_columns(mma_v2(ones, values, none), form)
    elif form[2]:
        ones = gl.full(weights.shape, 1.0, dtype, first)
        total += offsets[:, :, None] * _own_columns(mma_v2(ones, values, none), form)
    return total


@gluon.jit
def add_groups(total, form: gl.constexpr, dtype: gl.constexpr):
    """Sums of parts, ``[4, rows, columns]``, from those by group and part."""
    groups: gl.constexpr = total.shape[0] // 4
    total = gl.sum(total.reshape((groups, 4, total.shape[1], total.shape[2])), 0)
    return total * sum_factor(form, dtype)
