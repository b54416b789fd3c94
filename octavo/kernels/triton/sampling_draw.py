"""Shared by the sampling kernels: a request's random number, and the draw by inverse CDF over groups of tokens."""

import triton
import triton.language as tl

GROUP: int = 256
"""Number of tokens per group; each group's largest logit and mass are stored, and vocabulary sums are sums of these."""

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def uniform(key, counter):
    """The ``counter``-th number of a stream in [0, 1): SplitMix64, equal to :func:`octavo.sampling.random.uniforms`."""
    z = counter.to(tl.uint64) * _GOLDEN + key.to(tl.uint64)
    z = (z ^ (z >> 30)) * _FACTOR_1
    z = (z ^ (z >> 27)) * _FACTOR_2
    return ((z ^ (z >> 31)) >> 12).to(tl.float64) * 2.0**-52


@triton.jit
def log2_scale(temperature):
    """The factor ``log2(e) / temperature``: a weight is ``exp2((logit - best) * factor)``; float32."""
    return tl.div_rn(1.4426950408889634, temperature.to(tl.float32))


@triton.jit
def first_above(weights, share, places, NUM: tl.constexpr):
    """The first place whose running sum exceeds ``share`` of the total; its weight is never zero.

    Args:
        weights: ``[NUM]`` float64, not negative, not all zero.
        share: float64, below 1.

    Returns:
        The place, and the target minus the running sum before it.
    """
    ends = tl.cumsum(weights, 0)
    goal = share * tl.max(ends, 0)
    place = tl.min(tl.where((ends > goal) & (weights > 0), places, NUM - 1), 0)
    start = tl.sum(tl.where(places == place, ends - weights, 0.0), 0)
    return place, goal - start


@triton.jit
def draw(logits, peaks, sums, vocab_size, best, scale, share, least, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    """The token at which a row's running sum of weights first exceeds ``share`` of the total (inverse CDF).

    Args:
        logits: pointer to the row's logits.
        peaks, sums: ``[GROUPS]`` float32, the groups' largest logits, and their sums of weights relative to them.
        best: the row's largest logit.
        scale: see :func:`log2_scale`.
        least: logits below it have weight zero.

    Returns:
        int32.
    """
    groups = tl.arange(0, GROUPS)
    factors = tl.exp2((peaks - best) * scale).to(tl.float64)
    group, rest = first_above(sums.to(tl.float64) * factors, share, groups, GROUPS)

    is_group = groups == group
    peak = tl.max(tl.where(is_group, peaks, -float("inf")), 0)
    rest /= tl.sum(tl.where(is_group, factors, 0.0), 0)
    offsets = tl.arange(0, GROUP)
    columns = group * GROUP + offsets
    x = tl.load(logits + columns, columns < vocab_size, other=-float("inf")).to(tl.float32)
    weights = tl.where(x >= least, tl.exp2((x - peak) * scale), 0.0).to(tl.float64)
    ends = tl.cumsum(weights, 0)
    total = tl.max(ends, 0)
    # The group's sum was rounded differently from this running sum: stay strictly below its end.
    rest = tl.minimum(rest, total - total * 2.0**-52)
    offset = tl.min(tl.where((ends > rest) & (weights > 0), offsets, GROUP - 1), 0)
    return group * GROUP + offset
