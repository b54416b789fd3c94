"""The norm of a single row, computed by each program of a GEMM that reads it.

A program norms the whole row, into shared memory, while its first weights are on their way; its threads read 16 bytes
each at a time. The bits are those of :mod:`octavo.kernels.triton.norm`.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.norm import scale_normed


@triton.constexpr_function
def padded_rounds(num_rounds, block_k):
    """Rounds of a normed row in shared memory: all that are loaded, also past the end."""
    at_once = _rounds_at_once(block_k)
    return -(-num_rounds // at_once) * at_once


@triton.constexpr_function
def _rounds_at_once(block_k):
    return 256 // block_k


@triton.constexpr_function
def _layout(num_warps, block_k):
    """How threads hold ``[rounds, warps, 1, columns]`` of a row, of as many rounds as they load at once."""
    at_once = _rounds_at_once(block_k)
    threads = [1, 256 // block_k, 1, block_k // 8]
    return gl.BlockedLayout([1, 1, 1, 8], threads, [at_once, num_warps // at_once, 1, 1], [3, 2, 1, 0])


@gluon.jit
def _columns(turn, BLOCK_K: gl.constexpr):
    """The features that each thread loads in a turn."""
    WARPS: gl.constexpr = gl.num_warps()
    AT_ONCE: gl.constexpr = _rounds_at_once(BLOCK_K)
    layout: gl.constexpr = _layout(WARPS, BLOCK_K)
    rounds: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    warps: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    columns: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    part = turn * AT_ONCE + gl.arange(0, AT_ONCE, rounds)[:, None, None, None]
    warp = gl.arange(0, WARPS, warps)[None, :, None, None]
    return (part * WARPS + warp) * BLOCK_K + gl.arange(0, BLOCK_K, columns)[None, None, None, :]


@gluon.jit
def load_factors(norm, K: gl.constexpr, ROUNDS: gl.constexpr, BLOCK_K: gl.constexpr):
    """The norm's weight as :func:`norm_row` takes it, for ``ROUNDS`` of :func:`padded_rounds`."""
    factors = ()
    for turn in gl.static_range(ROUNDS // _rounds_at_once(BLOCK_K)):
        column = _columns(turn, BLOCK_K)
        factors = factors + (gl.load(norm + column, column < K, other=0.0),)  # type: ignore[assignment]
    return factors


@gluon.jit
def norm_row(x, residual, factors, eps, total, normed, K: gl.constexpr):
    """Write the normed sum of ``x`` and ``residual`` to ``normed``, ``[rounds, warps, 1, columns]`` shared.

    The first program also writes the sum to ``total`` if there is a residual.
    """
    BLOCK_K: gl.constexpr = normed.shape[3]
    AT_ONCE: gl.constexpr = _rounds_at_once(BLOCK_K)
    layout: gl.constexpr = _layout(gl.num_warps(), BLOCK_K)
    sums = ()
    squares = gl.zeros([AT_ONCE, gl.num_warps(), 1, BLOCK_K], gl.float32, layout)
    for turn in gl.static_range(len(factors)):
        column = _columns(turn, BLOCK_K)
        values = gl.load(x + column, column < K, other=0.0)
        if residual is not None:
            wide = values.to(gl.float32) + gl.load(residual + column, column < K, other=0.0).to(gl.float32)
            values = wide.to(values.dtype)
        wide = values.to(gl.float32)
        squares += wide * wide
        sums = sums + (values,)  # type: ignore[assignment]
    rate = gl.rsqrt(gl.sum(squares.reshape([squares.numel]), 0) / K + eps)
    for turn in gl.static_range(len(factors)):
        scaled = scale_normed(sums[turn].to(gl.float32) * rate, factors[turn], sums[turn].dtype)
        normed.slice(turn * AT_ONCE, AT_ONCE).store(scaled)
    if residual is not None:  # noqa: SIM102 - one is decided when the kernel is compiled, the other when it runs
        if gl.program_id(0) == 0:
            for turn in gl.static_range(len(factors)):
                column = _columns(turn, BLOCK_K)
                gl.store(total + column, sums[turn], column < K)
