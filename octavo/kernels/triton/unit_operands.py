"""Codes of 4 bits from memory to the tensor cores' registers, past shared memory, 16 bytes of a thread at a time.

Tensor cores add up products of pairs, whichever pairs those are: so inputs may come in any order that both operands
share. Here a thread of an MMA has 16 neighbouring bytes of each of its rows, a *unit* of 32 inputs, and those inputs.
Four units of 16 rows are a warp's *round*.

A word of a unit has eight codes. In the low halves of its even bytes and of its odd ones, and in their high halves, lie
two each that come out of a mask as one register, a pair. Two orders of bytes are in use: of a dense weight, a pair are
neighbours (:func:`octavo.kernels.grouped.byte_order`); of experts, it is the even and the odd bytes that are
(:func:`octavo.kernels.packed_experts.pack_units`), so that a pair are inputs eight apart.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.grouped_unpack import unpack_words

UNIT_INPUTS = gl.constexpr(32)
UNIT_WORDS = gl.constexpr(4)
ROUND_UNITS = gl.constexpr(4)
"""Units of a row that a warp multiplies at a time."""
ROUND_ROWS = gl.constexpr(16)


@triton.constexpr_function
def unit_layout(num_warps, rows, width):
    """How warps hold ``[warps, rows, 4 units, width]``: a thread has a unit of each of its rows."""
    registers = [[0, 0, 0, 1 << i] for i in range(width.bit_length() - 1)] + ([[0, 8, 0, 0]] if rows == 16 else [])
    lanes = [[0, 0, 1, 0], [0, 0, 2, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]]
    warps = [[1 << i, 0, 0, 0] for i in range(num_warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [num_warps, rows, 4, width])


@gluon.jit
def to_weights(words, terms, FORM: gl.constexpr, dtype: gl.constexpr, layout: gl.constexpr):
    """Words ``[warps, 16, 4, 4]`` as an MMA's first operand, ``[warps, 16, 128]``.

    Args:
        terms: pairs as :func:`unpack_words` takes them, that broadcast to ``words``.
    """
    warps: gl.constexpr = words.shape[0]
    terms, _ = gl.broadcast(terms, words)
    a, b, c, d, e, f, g, h = unpack_words(words, terms, None, FORM, dtype)
    # A register of an output has a pair of one word, in the place of two words' values.
    low, high = gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h))
    values = gl.join(low, high).reshape((warps, 16, 4, 2, 2, 2, 2, 2)).permute((0, 1, 3, 6, 7, 5, 2, 4))
    values = values.reshape((warps, 16, ROUND_UNITS * UNIT_INPUTS))
    return gl.convert_layout(values, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)


@gluon.jit
def to_inputs(values, PAIRS_NEIGHBOURS: gl.constexpr, layout: gl.constexpr):
    """Inputs ``[warps, columns, 4, 32]`` as the second operand, ``[warps, 128, columns]``.

    Args:
        PAIRS_NEIGHBOURS: whether a pair are neighbours in ``values``; otherwise they are eight apart.
    """
    warps: gl.constexpr = values.shape[0]
    columns: gl.constexpr = values.shape[1]
    values = values.reshape((warps, columns, 4, 2, 2, 4, 2))
    if PAIRS_NEIGHBOURS:
        values = values.permute((0, 1, 5, 3, 4, 2, 6))
    else:
        values = values.permute((0, 1, 5, 3, 6, 2, 4))
    values = values.reshape((warps, columns, ROUND_UNITS * UNIT_INPUTS)).permute((0, 2, 1))
    return gl.convert_layout(values, gl.DotOperandLayout(1, layout, 2), assert_trivial=True)
