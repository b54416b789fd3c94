"""Finds a filter's threshold by bisection over the bits of float32, with several probe values per pass."""

import torch
import triton
import triton.language as tl

_GROUP_PROBES = tl.constexpr(8)


def key_shift(dtype: torch.dtype) -> int:
    """Number of low bits of a float32 that are always zero if it was widened from ``dtype``."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """Map a finite float32 to an int64 key of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) >> SHIFT


@triton.jit
def _value(key, SHIFT: tl.constexpr):
    """The smallest float32 with this key, the inverse of :func:`_key`."""
    bits = (key << SHIFT).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def group_cut(
    maxima, masses, num_groups, k, has_k, allowed, lowest, best, scale, SHIFT: tl.constexpr, GROUPS: tl.constexpr
):
    """The largest value that ``k`` group maxima reach or, without ``k``, with likely at most ``allowed`` mass below it.

    The mass below a value is estimated from the groups that lie entirely below it, as a sample of all groups.

    Args:
        maxima, masses: pointers to the row's ``[num_groups]`` largest logits, and sums of weights relative to them.
        allowed: mass relative to the weight of ``best``, the largest logit; float64.

    Returns:
        float32; ``lowest`` if no larger value qualifies.
    """
    groups = tl.arange(0, GROUPS)[None, :]
    peaks = tl.load(maxima + groups, groups < num_groups, other=-float("inf"))
    weights = tl.load(masses + groups, groups < num_groups, other=0.0) * tl.exp2((peaks - best) * scale)
    bottom = _key(lowest, SHIFT)
    low, high = bottom, _key(best, SHIFT) + 1
    while high - low > 1:
        step = (high - low + _GROUP_PROBES) // (_GROUP_PROBES + 1)
        values = _value(low + step * (1 + tl.arange(0, _GROUP_PROBES)), SHIFT)[:, None]
        is_above = peaks >= values
        num_above, below = tl.reduce((is_above.to(tl.int32), tl.where(is_above, 0.0, weights)), 1, _add_pairs)
        num_others = tl.maximum(num_groups - num_above, 1)
        is_reached = below.to(tl.float64) * num_groups <= allowed * num_others
        if has_k:
            is_reached = num_above >= k
        num_reached = tl.sum(is_reached.to(tl.int64), 0)
        low += step * num_reached
        high = tl.minimum(high, low + step)
    return tl.where(low == bottom, lowest, _value(low, SHIFT))


@triton.jit
def mass_from(source, num, least, best, scale, TILE: tl.constexpr, STAGES: tl.constexpr):
    """The sum of the weights of all logits ≥ ``least``, as float64."""
    total = tl.zeros([TILE], tl.float32)
    for start in tl.range(0, num, TILE, num_stages=STAGES):
        places = start + tl.arange(0, TILE)
        x = tl.load(source + places, places < num, other=-float("inf")).to(tl.float32)
        total += tl.where(x >= least, tl.exp2((x - best) * scale), 0.0)
    return tl.sum(total, 0).to(tl.float64)


@triton.jit
def search(
    source,
    num,
    target,
    least,
    best,
    scale,
    IS_MASS: tl.constexpr,
    SHIFT: tl.constexpr,
    TILE: tl.constexpr,
    PROBES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The largest value such that the number, or the mass, of the logits ≥ it is at least ``target``.

    Args:
        source: pointer to ``num`` logits, none above ``best``.

    Returns:
        float32; ``least`` if no larger value qualifies.
    """
    bottom = _key(least, SHIFT)
    low, high = bottom, _key(best, SHIFT) + 1
    while high - low > 1:
        step = (high - low + PROBES) // (PROBES + 1)
        values = _value(low + step * (1 + tl.arange(0, PROBES)), SHIFT)[:, None]
        totals = tl.zeros([PROBES, TILE], tl.float32)
        for start in tl.range(0, num, TILE, num_stages=STAGES):
            places = start + tl.arange(0, TILE)[None, :]
            x = tl.load(source + places, places < num, other=-float("inf")).to(tl.float32)
            counted = tl.full(x.shape, 1.0, tl.float32)
            if IS_MASS:
                counted = tl.exp2((x - best) * scale)
            totals += tl.where(x >= values, counted, 0.0)
        num_reached = tl.sum((tl.sum(totals, axis=1) >= target).to(tl.int64), 0)
        low += step * num_reached
        high = tl.minimum(high, low + step)
    return tl.where(low == bottom, least, _value(low, SHIFT))
