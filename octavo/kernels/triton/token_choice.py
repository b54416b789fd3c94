"""A token's choice of experts as each warp of a kernel makes it by itself, from the parts of the router's logits."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.routing_choice import only_numbers, score_logits, sort_keys, sum_powers, take_best

_AWAIT_FOUR = gl.constexpr("""{
.reg .pred p;
.reg .b32 m;
AGAIN:
ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];
min.s32 m, $0, $1;
min.s32 m, m, $2;
min.s32 m, m, $3;
setp.lt.s32 p, m, 0;
@p bra AGAIN;
}""")
"""Four numbers, once none of them is negative any more."""


@triton.constexpr_function
def _shared_layout(num_warps):
    """All threads share the logits: the programs of a launch read the same ones, so that each should do so once."""
    return gl.BlockedLayout([1], [32], [num_warps], [0])


@triton.constexpr_function
def _copied_layout(num_bins, num_warps):
    """Each warp holds all logits, and finds the highest without the others."""
    return gl.BlockedLayout([max(num_bins // 32, 1)], [32], [num_warps], [0])


@gluon.jit
def rank_experts(logits, bias, correction, EXPERTS: gl.constexpr, LOGIT_PARTS: gl.constexpr, SCORE: gl.constexpr):
    """Experts' numbers, logits, scores, and keys that rank them, each ``[bins]``.

    A softmax keeps the order of logits. So these take the place of scores if nothing is added to those.
    """
    BINS: gl.constexpr = triton.next_power_of_2(EXPERTS)
    own = gl.arange(0, BINS, _shared_layout(gl.num_warps()))
    rows = ()
    for part in gl.static_range(LOGIT_PARTS):
        row = gl.load(logits + (part * EXPERTS + own), own < EXPERTS, other=0.0)
        rows = rows + (row,)  # type: ignore[assignment]
    total = rows[0]  # type: ignore[misc]
    for part in gl.static_range(1, LOGIT_PARTS):
        total += rows[part]
    if bias is not None:
        total += gl.load(bias + own, own < EXPERTS, other=0.0)
    layout: gl.constexpr = _copied_layout(BINS, gl.num_warps())
    expert = gl.arange(0, BINS, layout)
    is_expert = expert < EXPERTS
    logit = gl.where(is_expert, gl.convert_layout(total, layout), -float("inf"))
    scores = logit
    if SCORE != "softmax" or correction is not None:
        scores = score_logits(logit, expert, SCORE)
    ranking = scores
    if correction is not None:
        ranking += gl.load(correction + expert, is_expert, other=0.0)
    return expert, logit, scores, sort_keys(only_numbers(ranking, is_expert))


@gluon.jit
def choose_until(chosen, own, keys, scores, expert, COUNT: gl.constexpr, IS_RANKING: gl.constexpr):
    """Add the next best experts and their scores to tuples until there are ``COUNT``; these, and the keys left."""
    for _ in gl.static_range(len(chosen), COUNT):
        best, score, keys = take_best(keys, scores, expert, IS_RANKING)
        chosen, own = chosen + (best,), own + (score,)
    return chosen, own, keys


@gluon.jit
def find_shares(scores, logit, factor, IS_LOGIT: gl.constexpr, RENORMALISES: gl.constexpr):
    """The weights of chosen experts by their scores, both tuples.

    Args:
        IS_LOGIT: whether scores are logits of a softmax, the highest first.
    """
    if IS_LOGIT:
        divisor = sum_powers(logit, scores[0])
        powers = ()
        for place in gl.static_range(len(scores)):
            powers = powers + (gl.exp(scores[place] - scores[0]) / divisor,)  # type: ignore[assignment]
        scores = powers
    total = scores[0]
    for place in gl.static_range(1, len(scores)):
        total += scores[place]
    shares = ()
    for place in gl.static_range(len(scores)):
        share = scores[place]
        if RENORMALISES:
            share = share / (total + 1e-20)
        shares = shares + (share * factor,)  # type: ignore[assignment]
    return shares


@gluon.jit
def load_experts(chosen, PAIRS: gl.constexpr):
    """The experts of pairs, a tuple."""
    experts = ()
    for pair in gl.static_range(PAIRS):
        experts = experts + (gl.load(chosen + pair).to(gl.int32),)  # type: ignore[assignment]
    return experts


@gluon.jit
def await_experts(places, PAIRS: gl.constexpr):
    """The experts of pairs, a tuple, once another kernel has written them over negative numbers.

    Args:
        places: ``[PAIRS]`` int32, aligned to 16 bytes.
    """
    experts = ()
    for first in gl.static_range(0, PAIRS, 4):
        experts = experts + gl.inline_asm_elementwise(
            _AWAIT_FOUR,
            "=r,=r,=r,=r,l",
            [places + first],
            dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
            is_pure=False,
            pack=1,
        )
    return experts


@gluon.jit
def pick(values, index, FIRST: gl.constexpr = 0, LAST: gl.constexpr = None):
    """Of a tuple of values, those at indices, which are from ``FIRST`` to ``LAST``."""
    END: gl.constexpr = len(values) if LAST is None else LAST + 1
    found = values[FIRST]
    for place in gl.static_range(FIRST + 1, END):
        found = gl.where(index == place, values[place], found)
    return found


@gluon.jit
def store_all(spots, values):
    """Store a tuple of scalars one after the other."""
    for place in gl.static_range(len(values)):
        gl.store(spots + place, values[place])
