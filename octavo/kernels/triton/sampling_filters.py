"""Top-k, top-p and min-p on the device: the least logit that may be drawn is searched for, nothing is sorted.

Filters go by value, so what ties with the last token kept is kept too. Mostly the tokens that matter are few and lie
in few groups: those groups, found by their largest logits, are read again and what may be kept of them is gathered.
Where it turns out that more matters, the whole row is searched.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.sampling_draw import draw, first_above, log2_scale, uniform

MAX_LISTED: int = 256
"""Most groups of a row that are searched for candidates."""
MAX_CANDIDATES: int = 2048
_NUM_SOUGHT = 128
_LISTED_TILE = 32
_CANDIDATE_TILE = 1024
_ROW_TILE = 8192
_ROW_STAGES = 3

_MAX_LISTED = tl.constexpr(MAX_LISTED)
_MAX_CANDIDATES = tl.constexpr(MAX_CANDIDATES)
_SOUGHT = tl.constexpr(_NUM_SOUGHT)
_LISTED = tl.constexpr(_LISTED_TILE)
_FEW = tl.constexpr(_CANDIDATE_TILE)
_MANY = tl.constexpr(_ROW_TILE)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_STAGES = tl.constexpr(_ROW_STAGES)


def key_shift(dtype: torch.dtype) -> int:
    """Low bits of a float32 that say nothing if it was widened from ``dtype``."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """A finite float32 as an integer of the same order, int64."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) >> SHIFT


@triton.jit
def _value(key, SHIFT: tl.constexpr):
    """The least float32 of a key, which sets apart what its key sets apart."""
    bits = (key << SHIFT).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weights(x, best, scale, IS_MASS: tl.constexpr):
    """What logits count for: their weight, or 1."""
    weights = tl.full(x.shape, 1.0, tl.float32)
    if IS_MASS:
        weights = tl.exp2((x - best) * scale)
    return weights


@triton.jit
def _mass_from(source, num, least, best, scale, TILE: tl.constexpr, STAGES: tl.constexpr):
    """The weights of the logits from ``least`` on, as a float64."""
    total = tl.zeros([TILE], tl.float32)
    for start in tl.range(0, num, TILE, num_stages=STAGES):
        places = start + tl.arange(0, TILE)
        x = tl.load(source + places, places < num, other=-float("inf")).to(tl.float32)
        total += tl.where(x >= least, _weights(x, best, scale, True), 0.0)
    return tl.sum(total, 0).to(tl.float64)


@triton.jit
def _search(
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
    """The largest value from which on logits count for ``target``; ``least`` if that holds for none above it.

    Each pass over ``source``, which holds ``num`` logits, none above ``best``, tries several values at once.
    """
    bottom = _key(least, SHIFT)
    low, high = bottom, _key(best, SHIFT) + 1
    while high - low > 1:
        step = (high - low + PROBES) // (PROBES + 1)
        values = _value(low + step * (1 + tl.arange(0, PROBES)), SHIFT)[:, None]
        totals = tl.zeros([PROBES, TILE], tl.float32)
        for start in tl.range(0, num, TILE, num_stages=STAGES):
            places = start + tl.arange(0, TILE)
            x = tl.load(source + places, places < num, other=-float("inf")).to(tl.float32)[None, :]
            totals += tl.where(x >= values, _weights(x, best, scale, IS_MASS), 0.0)
        num_reached = tl.sum((tl.sum(totals, axis=1) >= target).to(tl.int64), 0)
        low += step * num_reached
        high = tl.minimum(high, low + step)
    return tl.where(low == bottom, least, _value(low, SHIFT))


@triton.jit
def _least_kept(
    source,
    num,
    k,
    has_k,
    p,
    has_p,
    mass,
    least,
    floor,
    best,
    scale,
    SHIFT: tl.constexpr,
    TILE: tl.constexpr,
    PROBES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The least logit that top-k and then top-p keep, which is ``least`` or above.

    ``mass`` is that of all logits from ``least`` on, 0 if not known; from ``floor`` on there is enough for top-p.
    """
    if has_k:
        least = _search(source, num, k, least, best, scale, False, SHIFT, TILE, PROBES, STAGES)
    if has_p:
        if mass == 0:
            mass = _mass_from(source, num, least, best, scale, TILE, STAGES)
        least = _search(source, num, p * mass, tl.maximum(least, floor), best, scale, True, SHIFT, TILE, PROBES, STAGES)
    return least


@triton.jit
def _gather(
    logits, peaks, cut, listed, candidates, candidate_ids, vocab_size, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """Write down the logits from ``cut`` on and their ids, in the order of ids; returns how many there are.

    Those past the room for them are only counted. The groups that hold them must not be too many for the list.
    """
    has_some = peaks >= cut
    tl.store(listed + tl.cumsum(has_some.to(tl.int32), 0) - 1, tl.arange(0, GROUPS), has_some)
    tl.debug_barrier()
    num_listed = tl.sum(has_some.to(tl.int32), 0)
    num = tl.zeros([], tl.int32)
    for start in range(0, num_listed, _LISTED):
        members = start + tl.arange(0, _LISTED)
        groups = tl.load(listed + members, members < num_listed, other=GROUPS)
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + columns, columns < vocab_size, other=-float("inf")).to(tl.float32)
        is_kept = (x >= cut).to(tl.int32)
        sizes = tl.sum(is_kept, axis=1)
        starts = num + tl.cumsum(sizes, 0) - sizes
        places = starts[:, None] + tl.cumsum(is_kept, axis=1) - 1
        tl.store(candidate_ids + places, columns, (is_kept != 0) & (places < _MAX_CANDIDATES))
        num += tl.sum(sizes, 0)
    tl.debug_barrier()
    places = tl.arange(0, _MAX_CANDIDATES)
    ids = tl.load(candidate_ids + places, places < num, other=0)
    tl.store(candidates + places, tl.load(logits + ids, places < num, other=0.0).to(tl.float32), places < num)
    tl.debug_barrier()
    return num


@triton.jit
def _weigh_groups(
    logits,
    maxima,
    masses,
    num_groups,
    vocab_size,
    scale,
    least,
    TILE_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Sum the weights of each group anew, of the logits from ``least`` on; ``masses`` are overwritten."""
    for start in tl.range(0, num_groups, TILE_GROUPS, num_stages=_STAGES):
        groups = start + tl.arange(0, TILE_GROUPS)
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + columns, columns < vocab_size, other=-float("inf")).to(tl.float32)
        peaks = tl.load(maxima + groups, groups < num_groups, other=0.0)
        origin = tl.where(peaks > -float("inf"), peaks, 0.0)
        weights = tl.where(x >= least, tl.exp2((x - origin[:, None]) * scale), 0.0)
        tl.store(masses + groups, tl.sum(weights, axis=1), groups < num_groups)
    tl.debug_barrier()
    all_groups = tl.arange(0, GROUPS)
    return tl.load(masses + all_groups, all_groups < num_groups, other=0.0)


@triton.jit
def filter_kernel(
    logits,
    slots,
    counts,
    lengths,
    temperature,
    top_p,
    min_p,
    top_k,
    stream_key,
    prompt_len,
    tokens,
    maxima,
    masses,
    is_open,
    listed,
    candidates,
    candidate_ids,
    vocab_size,
    num_groups,
    logits_stride,
    float_stride,
    int_stride,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    SHIFT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program per row: draw the rows that are open; see :func:`octavo.kernels.triton.sampling.sample`."""
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # All at once: only volatile loads stay before the branch.
    slot = tl.load(slots + row, volatile=True).to(tl.int64)
    length = tl.load(lengths + row, volatile=True).to(tl.int64)
    num_real, is_left_open = tl.load(counts), tl.load(is_open + row)
    if (row >= num_real) | (is_left_open == 0):
        return
    t = tl.load(temperature + slot * float_stride)
    p = tl.load(top_p + slot * float_stride)
    share_of_best = tl.load(min_p + slot * float_stride)
    k = tl.load(top_k + slot * int_stride)
    key = tl.load(stream_key + slot * int_stride)
    num_prompt = tl.load(prompt_len + slot * int_stride)
    row = row.to(tl.int64)
    logits += row * logits_stride
    maxima += row * num_groups
    masses += row * num_groups
    listed += row * _MAX_LISTED
    candidates += row * _MAX_CANDIDATES
    candidate_ids += row * _MAX_CANDIDATES

    groups = tl.arange(0, GROUPS)
    peaks = tl.load(maxima + groups, groups < num_groups, other=-float("inf"))
    sums = tl.load(masses + groups, groups < num_groups, other=0.0)
    scale, share = log2_scale(t), uniform(key, length - num_prompt)
    best = tl.max(peaks, 0)
    has_k, has_p, has_min_p = (k > 0) & (k < vocab_size), p < 1, share_of_best > 0
    least = tl.full([], -float("inf"), tl.float32)
    if has_min_p:
        least = tl.minimum(best + tl.log2(share_of_best.to(tl.float32)) / scale, best)

    # Where to cut: min-p may leave few groups; else the k-th of their maxima has k logits from it on, and top-p is
    # tried with the largest few.
    is_whole = has_min_p & (tl.sum((peaks >= least).to(tl.int32), 0) <= _MAX_LISTED)
    num_sought = tl.minimum(_SOUGHT, num_groups // 4).to(tl.int64)
    can_cut = has_p & (num_sought > 0) & (has_min_p == 0)
    if has_k:
        num_sought = k
        can_cut = k <= tl.minimum(_SOUGHT, 3 * num_groups // 4)
    cut = least
    if can_cut & (is_whole == 0):
        lowest = tl.maximum(least, tl.min(tl.where(groups < num_groups, peaks, best), 0))
        cut = _search(maxima, num_groups, num_sought, lowest, best, scale, False, SHIFT, GROUPS, 8, 1)
    # What is not finite is no candidate.
    cut = tl.maximum(cut, _LOWEST)
    num_listed = tl.sum((peaks >= cut).to(tl.int32), 0)
    is_few = (can_cut | is_whole) & (num_listed <= _MAX_LISTED)
    num = tl.zeros([], tl.int32)
    if is_few:
        num = _gather(logits, peaks, cut, listed, candidates, candidate_ids, vocab_size, GROUPS, GROUP)
        is_few = num <= _MAX_CANDIDATES
    mass = tl.sum(sums.to(tl.float64) * tl.exp2((peaks - best) * scale).to(tl.float64), 0)
    if is_few & ((has_k | is_whole) == 0):
        is_few = _mass_from(candidates, num, cut, best, scale, _FEW, 1) >= p * mass
    mass = tl.where(has_k | has_min_p, 0.0, mass)

    if is_few:
        least = _least_kept(candidates, num, k, has_k, p, has_p, mass, cut, cut, best, scale, SHIFT, _FEW, 8, 1)
        places = tl.arange(0, _MAX_CANDIDATES)
        x = tl.load(candidates + places, places < num, other=-float("inf"))
        weights = tl.where(x >= least, tl.exp2((x - best) * scale), 0.0).to(tl.float64)
        place, _ = first_above(weights, share, places, _MAX_CANDIDATES)
        token = tl.load(candidate_ids + place)
    else:
        # What lies below the floor, were it everything, would be no more than half of what top-p leaves out.
        floor = best - (tl.log2((vocab_size / tl.maximum(1 - p, 1e-20)).to(tl.float32)) + 1) / scale
        least = _least_kept(
            logits, vocab_size, k, has_k, p, has_p, mass, least, floor, best, scale, SHIFT, _MANY, 2, _STAGES
        )
        sums = _weigh_groups(
            logits, maxima, masses, num_groups, vocab_size, scale, least, _MANY // GROUP, GROUPS, GROUP
        )
        token = draw(logits, peaks, sums, vocab_size, best, scale, share, least, GROUPS, GROUP)
    tl.store(tokens + row, token.to(tl.int64))
