"""Top-k, top-p and min-p on the device, without sorting: a search finds the threshold, the least logit that is kept.

Filters compare values, so tokens that tie with the last one kept are kept, too. Usually few tokens matter: a cut below
all of them is derived from the groups' maxima and masses, and the logits above it are gathered as candidates. Up to
256 candidates are compared pairwise; with more, the threshold is searched among them. With more than
``MAX_CANDIDATES``, it is searched in the whole row.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.sampling_draw import draw, first_above, log2_scale, uniform
from octavo.kernels.triton.sampling_search import group_cut, mass_from, search

MAX_CANDIDATES: int = 4096

_MAX_CANDIDATES = tl.constexpr(MAX_CANDIDATES)
_FEW = tl.constexpr(256)
_FEW_AT_ONCE = tl.constexpr(16)
_GROUPS_AT_ONCE = tl.constexpr(16)
_STAGES = tl.constexpr(4)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_NUM_TRIES = tl.constexpr(2)
_CAUTION = tl.constexpr(0.6)
"""Share of the mass outside top-p that the estimate may place below the first cut; below 1 as a safety margin."""


@triton.jit
def _add_and_max(a, b, c, d):
    return a + c, tl.maximum(b, d)


@triton.jit
def _num_bits(words):
    """The number of bits set in each uint32 word."""
    words -= (words >> 1) & 0x55555555
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    return ((((words + (words >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _gather(
    logits, peaks, cut, best, scale, listed, candidate_ids, vocab_size, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """Store the ids of all logits ≥ ``cut``, in ascending order.

    Returns:
        Their number and mass. The scan stops once the number exceeds ``MAX_CANDIDATES``; both are partial then.
    """
    has_some = (peaks >= cut).to(tl.int32)
    # All reads of the previous try's list come before this overwrites it.
    tl.debug_barrier()
    tl.store(listed + tl.cumsum(has_some, 0) - 1, tl.arange(0, GROUPS), has_some != 0)
    num_listed = tl.sum(has_some, 0)
    tl.debug_barrier()
    # Each lane handles a word of 32 tokens of a listed group, one bit per token.
    places = tl.arange(0, _GROUPS_AT_ONCE * GROUP // 32)
    members = places // (GROUP // 32)
    inside = places % (GROUP // 32) * 32
    bits = tl.arange(0, 32)[None, :]
    groups = tl.load(listed + members, members < num_listed, other=GROUPS)
    first_ids = groups * GROUP + inside
    columns = first_ids[:, None] + bits
    coming = tl.load(logits + columns, columns < vocab_size, other=-float("inf"))
    num, start = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    mass = tl.zeros([_GROUPS_AT_ONCE * GROUP // 32], tl.float32)
    while (start < num_listed) & (num <= _MAX_CANDIDATES):
        ids, x = first_ids, coming.to(tl.float32)
        start += _GROUPS_AT_ONCE
        groups = tl.load(listed + start + members, start + members < num_listed, other=GROUPS)
        first_ids = groups * GROUP + inside
        columns = first_ids[:, None] + bits
        coming = tl.load(logits + columns, columns < vocab_size, other=-float("inf"))
        is_kept = x >= cut
        mass += tl.sum(tl.where(is_kept, tl.exp2((x - best) * scale), 0.0), axis=1)
        words = tl.sum(is_kept.to(tl.uint32) << bits.to(tl.uint32), axis=1)
        sizes = _num_bits(words)
        ends = num + tl.cumsum(sizes, 0)
        next_places = ends - sizes
        total, most = tl.reduce((sizes, sizes), 0, _add_and_max)
        for _ in range(most):
            rest = words & (words - 1)
            # The lowest set bit as a float is a power of two; its exponent is the bit's index.
            bit = ((words ^ rest).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            tl.store(candidate_ids + next_places, ids + bit, (words != 0) & (next_places < _MAX_CANDIDATES))
            words = rest
            next_places += 1
        num += total
    tl.debug_barrier()
    return num, tl.sum(mass, 0)


@triton.jit
def _draw_from_few(logits, candidate_ids, num, k, has_k, p, has_p, mass, best, scale, share):
    """The token drawn from at most ``_FEW`` candidates; ``mass`` is the row's, or 0 for the mass that top-k keeps."""
    places = tl.arange(0, _FEW)
    ids = tl.load(candidate_ids + places, places < num, other=0)
    x = tl.load(logits + ids, places < num, other=-float("inf")).to(tl.float32)
    num_above = tl.zeros([_FEW, _FEW_AT_ONCE], tl.int32)
    mass_above = tl.zeros([_FEW, _FEW_AT_ONCE], tl.float32)
    for start in range(0, num, _FEW_AT_ONCE):
        others = start + tl.arange(0, _FEW_AT_ONCE)[None, :]
        other_ids = tl.load(candidate_ids + others, others < num, other=0)
        y = tl.load(logits + other_ids, others < num, other=-float("inf")).to(tl.float32)
        is_above = y > x[:, None]
        num_above += is_above.to(tl.int32)
        mass_above += tl.where(is_above, tl.exp2((y - best) * scale), 0.0)
    weights = tl.exp2((x - best) * scale)
    weights = tl.where((has_k == 0) | (tl.sum(num_above, axis=1) < k), weights, 0.0)
    if mass == 0:
        mass = tl.sum(weights, 0).to(tl.float64)
    is_kept = (has_p == 0) | (tl.sum(mass_above, axis=1).to(tl.float64) < p * mass)
    place, _ = first_above(tl.where(is_kept, weights, 0.0).to(tl.float64), share, places, _FEW)
    return tl.load(candidate_ids + place)


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
    """The threshold: the least logit that top-k and then top-p keep, at least ``least``.

    ``mass`` is the row's, or 0 for the mass of the logits that are left. The logits ≥ ``floor`` hold enough mass for
    top-p, so its search starts there.
    """
    if has_k:
        least = search(source, num, k, least, best, scale, False, SHIFT, TILE, PROBES, STAGES)
    if has_p:
        if mass == 0:
            mass = mass_from(source, num, least, best, scale, TILE, STAGES)
        floor = tl.maximum(least, floor)
        least = search(source, num, p * mass, floor, best, scale, True, SHIFT, TILE, PROBES, STAGES)
    return least


@triton.jit
def _weigh_groups(
    logits, maxima, masses, num_groups, vocab_size, scale, least, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """Recompute each group's sum of weights from the logits ≥ ``least``; overwrites ``masses``."""
    for start in tl.range(0, num_groups, _GROUPS_AT_ONCE, num_stages=_STAGES):
        groups = start + tl.arange(0, _GROUPS_AT_ONCE)
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
    """Draw the open rows, one program per row; see :func:`octavo.kernels.triton.sampling.sample`."""
    row = tl.program_id(0)
    # These loads may precede the wait: the survey kernel, which may still run, writes none of them.
    is_real = row < tl.load(counts)
    slot = tl.load(slots + row, is_real, other=0).to(tl.int64)
    length = tl.load(lengths + row, is_real, other=0).to(tl.int64)
    t = tl.load(temperature + slot * float_stride, is_real, other=1.0)
    p = tl.load(top_p + slot * float_stride, is_real, other=1.0)
    share_of_best = tl.load(min_p + slot * float_stride, is_real, other=0.0)
    k = tl.load(top_k + slot * int_stride, is_real, other=0)
    key = tl.load(stream_key + slot * int_stride, is_real, other=0)
    num_prompt = tl.load(prompt_len + slot * int_stride, is_real, other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if tl.load(is_open + row, is_real, other=0) == 0:
        return
    row = row.to(tl.int64)
    logits += row * logits_stride
    maxima += row * num_groups
    masses += row * num_groups
    listed += row * num_groups
    candidates += row * _MAX_CANDIDATES
    candidate_ids += row * _MAX_CANDIDATES

    groups = tl.arange(0, GROUPS)
    peaks = tl.load(maxima + groups, groups < num_groups, other=-float("inf"))
    sums = tl.load(masses + groups, groups < num_groups, other=0.0)
    scale, share = log2_scale(t), uniform(key, length - num_prompt)
    best = tl.max(peaks, 0)
    has_k, has_p, has_min_p = (k > 0) & (k < vocab_size), p < 1, share_of_best > 0
    is_top_p_alone = has_p & ((has_k | has_min_p) == 0)
    least = tl.full([], -float("inf"), tl.float32)
    if has_min_p:
        least = tl.minimum(best + tl.log2(share_of_best.to(tl.float32)) / scale, best)
    # With other filters, top-p applies to the mass that they leave, which is not known yet; 0 stands for that.
    mass = tl.zeros([], tl.float64)
    if is_top_p_alone:
        mass = tl.sum(sums.to(tl.float64) * tl.exp2((peaks - best) * scale).to(tl.float64), 0)

    # The cut: for top-k, the k-th largest group maximum (at least k logits reach it); for min-p, its own threshold; for
    # top-p alone, an estimate that is checked against the mass found and lowered if that is too small.
    lowest = tl.maximum(tl.maximum(least, tl.min(tl.where(groups < num_groups, peaks, best), 0)), _LOWEST)
    num_tries = tl.where(is_top_p_alone, _NUM_TRIES, ((has_k == 0) | (k <= 3 * num_groups // 4)).to(tl.int32))
    allowed = (1 - p) * mass * _CAUTION
    cut = tl.maximum(least, _LOWEST)
    num, is_gathered = tl.zeros([], tl.int32), tl.zeros([], tl.int1)
    while num_tries > 0:
        num_tries -= 1
        if has_k | is_top_p_alone:
            cut = group_cut(maxima, masses, num_groups, k, has_k, allowed, lowest, best, scale, SHIFT, GROUPS)
        if is_top_p_alone & (cut == lowest):
            num_tries = 0
        else:
            num, found = _gather(logits, peaks, cut, best, scale, listed, candidate_ids, vocab_size, GROUPS, GROUP)
            is_enough = (found.to(tl.float64) >= p * mass) | (is_top_p_alone == 0)
            is_gathered = is_enough & (num <= _MAX_CANDIDATES)
            if is_enough | (num > _MAX_CANDIDATES):
                num_tries = 0
            # The estimate placed too little mass below the cut: scale it by the error found, and by the safety margin.
            allowed *= _CAUTION * tl.minimum(allowed / tl.maximum(mass - found, 1e-30), 1.0)

    if is_gathered & (num <= _FEW):
        token = _draw_from_few(logits, candidate_ids, num, k, has_k, p, has_p, mass, best, scale, share)
    elif is_gathered:
        places = tl.arange(0, _MAX_CANDIDATES)
        ids = tl.load(candidate_ids + places, places < num, other=0)
        x = tl.load(logits + ids, places < num, other=-float("inf")).to(tl.float32)
        tl.store(candidates + places, x, places < num)
        tl.debug_barrier()
        least = _least_kept(candidates, num, k, has_k, p, has_p, mass, cut, cut, best, scale, SHIFT, 1024, 8, 1)
        weights = tl.where(x >= least, tl.exp2((x - best) * scale), 0.0).to(tl.float64)
        place, _ = first_above(weights, share, places, _MAX_CANDIDATES)
        token = tl.load(candidate_ids + place)
    else:
        # Even if all V logits were just below the floor, their mass would be at most half of what top-p leaves out.
        share_below = tl.maximum(1 - p, 1e-20) * tl.maximum(mass, 1.0) / vocab_size
        floor = best + (tl.log2(share_below.to(tl.float32)) - 1) / scale
        least = _least_kept(
            logits, vocab_size, k, has_k, p, has_p, mass, least, floor, best, scale, SHIFT, 2048, 4, _STAGES
        )
        sums = _weigh_groups(logits, maxima, masses, num_groups, vocab_size, scale, least, GROUPS, GROUP)
        token = draw(logits, peaks, sums, vocab_size, best, scale, share, least, GROUPS, GROUP)
    tl.store(tokens + row, token.to(tl.int64))
