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
def _middles(dtype):
    """Twice the negative middle of codes of 4 bits over ``UNIT_SCALE``, as signed words."""
    return -0x437F4380 if dtype == gl.bfloat16 else -0x5BFF5C00


@gluon.jit
def load_weights(code_slot, GROUP: gl.constexpr, BITS: gl.constexpr, mma: gl.constexpr, dtype: gl.constexpr):
    """A round's weights less the middle of their codes, over ``UNIT_SCALE``: ``[4 groups, rows, GROUP]``."""
    rows: gl.constexpr = code_slot.shape[1]
    groups: gl.constexpr = _UNIT // GROUP
    operand: gl.constexpr = gl.DotOperandLayout(0, mma, adjacent_inputs(BITS, GROUP))
    if BITS == 4:
        words = code_slot.load(_word_layout(gl.num_warps(), rows))
        middles = gl.full([4, rows, 16], _middles(dtype), gl.int32, words.type.layout)
        a, b, c, d, e, f, g, h = unpack_words(words, middles, None, "int4", dtype)
        low, high = gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h))
        # Neighbours are in the places of two units' words.
        values = gl.join(low, high).reshape((4, rows, 2, 2, 4, 2, 2, 2)).permute((2, 6, 0, 1, 7, 5, 4, 3))
    else:
        values = move_bytes(code_slot.load(operand), dtype).reshape((4, rows, groups, GROUP)).permute((2, 0, 1, 3))
    return gl.convert_layout(values.reshape((4 * groups, rows, GROUP)), operand, assert_trivial=True)


@gluon.jit
def _by_group(values, GROUP: gl.constexpr, layout: gl.constexpr):
    """A round's inputs ``[4, 128, columns]``, as ``[4 groups, GROUP, columns]``."""
    groups: gl.constexpr = _UNIT // GROUP
    columns: gl.constexpr = values.shape[2]
    values = values.reshape((4, groups, GROUP, columns)).permute((1, 0, 2, 3))
    return gl.convert_layout(values.reshape((4 * groups, GROUP, columns)), layout, assert_trivial=True)


@gluon.jit
def multiply_groups(total, code_slot, term_slot, values, form: gl.constexpr):
    """Add a round's sums, by group and part, to ``total``, ``[4 groups, rows, columns]``.

    Args:
        term_slot: ``[4, rows, groups]``; see :mod:`.grouped_terms`.
        values: inputs, ``[4, 128, columns]``.
        form: inputs of a group, bits of a code, and whether there are offsets.
    """
    GROUP: gl.constexpr = form[0]
    groups: gl.constexpr = _UNIT // GROUP
    rows: gl.constexpr = code_slot.shape[1]
    dtype: gl.constexpr = values.dtype
    mma: gl.constexpr = total.type.layout
    adjacent: gl.constexpr = adjacent_inputs(form[1], GROUP)
    weights = load_weights(code_slot, GROUP, form[1], mma, dtype)
    values = _by_group(values, GROUP, gl.DotOperandLayout(1, mma, adjacent))
    terms = term_slot.load(_term_layout(gl.num_warps(), rows, groups)).permute((2, 0, 1)).reshape((4 * groups, rows))
    scales, offsets = widen_pairs(gl.convert_layout(terms, gl.SliceLayout(2, mma), assert_trivial=True))
    total += scales[:, :, None] * mma_v2(weights, values, gl.zeros_like(total))
    if form[2]:
        ones = gl.full([4 * groups, rows, GROUP], 1.0, dtype, gl.DotOperandLayout(0, mma, adjacent))
        total += offsets[:, :, None] * mma_v2(ones, values, gl.zeros_like(total))
    return total


@gluon.jit
def add_groups(total):
    """Sums of parts, ``[4, rows, columns]``, from those by group and part."""
    groups: gl.constexpr = total.shape[0] // 4
    rows: gl.constexpr = total.shape[1]
    columns: gl.constexpr = total.shape[2]
    mma: gl.constexpr = total.type.layout
    return gl.convert_layout(gl.sum(total.reshape((groups, 4, rows, columns)), 0), mma, assert_trivial=True)
