"""The norm of a single row, computed by each program of a GEMM that reads it.

A program norms the whole row while its first weights are on their way. A row is a tuple of parts, tensors of any shape;
``columns`` are the features that each holds, those past the end stand for nothing. The bits are mostly those of
:mod:`octavo.kernels.triton.norm`, which adds up squares in another order.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.triton.norm import add_rounded, scale_normed

NormArguments = tuple[torch.Tensor | None, torch.Tensor | None, float, torch.Tensor | None]


def norm_arguments(norm: DeferredNorm | None) -> NormArguments:
    """Residual, weight, epsilon, and where the sum goes, as kernels take them; the norm is settled.

    Of weighted rows the epsilon alone: see :mod:`.stream_sum`.
    """
    if norm is None or norm.weighted is not None:
        return None, None, 0.0 if norm is None else norm.eps, None
    residual, total = norm.residual, None
    if residual is not None:
        residual = residual.contiguous()
        total = torch.empty_like(residual)
        norm.settle(total)
    return residual, norm.weight, norm.eps, total


@triton.constexpr_function
def rounds_at_once(block_k):
    """Rounds of ``block_k`` features per warp that a program's threads load at once, 16 bytes each."""
    return 256 // block_k


@triton.constexpr_function
def padded_rounds(num_rounds, block_k):
    """Rounds of shared memory that whole parts fit into: a power of two, since slices of other sizes are misplaced."""
    return max(triton.next_power_of_2(num_rounds), rounds_at_once(block_k))


@triton.constexpr_function
def _round_layout(num_warps, block_k):
    """How threads hold ``[rounds, warps, 1, block_k]`` features."""
    at_once = rounds_at_once(block_k)
    threads = [1, 256 // block_k, 1, block_k // 8]
    return gl.BlockedLayout([1, 1, 1, 8], threads, [at_once, num_warps // at_once, 1, 1], [3, 2, 1, 0])


@gluon.jit
def round_columns(PARTS: gl.constexpr, AT_ONCE: gl.constexpr, BLOCK_K: gl.constexpr):
    """Columns of parts ``[AT_ONCE, warps, 1, BLOCK_K]``: so many rounds, in each of which a warp has its features.

    ``AT_ONCE`` is a multiple of :func:`rounds_at_once`.
    """
    WARPS: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = _round_layout(WARPS, BLOCK_K)
    rounds: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    warps: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    features: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    warp = gl.arange(0, WARPS, warps)[None, :, None, None]
    feature = gl.arange(0, BLOCK_K, features)[None, None, None, :]
    columns = ()
    for part in gl.static_range(PARTS):
        i = part * AT_ONCE + gl.arange(0, AT_ONCE, rounds)[:, None, None, None]
        columns = columns + ((i * WARPS + warp) * BLOCK_K + feature,)  # type: ignore[assignment]
    return columns


@gluon.jit
def load_factors(norm, columns, K: gl.constexpr):
    """The parts of a norm's weight."""
    factors = ()
    for part in gl.static_range(len(columns)):
        factors = factors + (gl.load(norm + columns[part], columns[part] < K, other=0.0),)  # type: ignore[assignment]
    return factors


@gluon.jit
def normed_parts(x, residual, columns, factors, eps, total, K: gl.constexpr):
    """The parts of the normed sum of ``x`` and ``residual``, with the norm's weight of :func:`load_factors`.

    The first program writes the sum to ``total`` if there is a residual.
    """
    sums = ()
    squares = gl.zeros_like(columns[0]).to(gl.float32)
    for part in gl.static_range(len(columns)):
        column = columns[part]
        values = gl.load(x + column, column < K, other=0.0)
        if residual is not None:
            values = add_rounded(values, gl.load(residual + column, column < K, other=0.0))
        wide = values.to(gl.float32)
        squares += wide * wide
        sums = sums + (values,)  # type: ignore[assignment]
    rate = gl.rsqrt(gl.sum(squares.reshape([squares.numel]), 0) / K + eps)
    normed = ()
    for part in gl.static_range(len(columns)):
        scaled = scale_normed(sums[part].to(gl.float32) * rate, factors[part], sums[part].dtype)
        normed = normed + (scaled,)
    if residual is not None:  # noqa: SIM102 - one is decided when the kernel is compiled, the other when it runs
        if gl.program_id(0) == 0:
            for part in gl.static_range(len(columns)):
                gl.store(total + columns[part], sums[part], columns[part] < K)
    return normed
