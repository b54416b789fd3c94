"""How experts are ranked and chosen by a token's logits: what kernels in Triton and in Gluon share."""

import triton
import triton.language as tl

_LAST = tl.constexpr((0xFF800000 ^ 0x7FFFFFFF) - (1 << 32))
"""Minus infinity as a key."""


@triton.jit
def score_logits(logit, experts, SCORE: tl.constexpr):
    """Scores by logits, ``[bins]``, minus infinity where there is no expert."""
    if SCORE == "softmax":
        top = tl.max(logit, 0)
        scores = tl.exp(logit - top) / sum_powers(logit, top)
    elif SCORE == "sigmoid":
        scores = tl.sigmoid(logit)
    else:
        scores = _draw_scores(tl.sum(tl.where(experts == 0, logit, 0.0), 0), experts)
    return scores


@triton.jit
def sum_powers(logit, top):
    """The sum that a softmax divides by, after the highest logit is taken off.

    Integers have one sum in any order, so bits do not depend on how threads share a row; they count 2⁻⁴⁰.
    """
    powers = tl.exp(logit - top)
    counts = (tl.where(powers >= 0.0, powers, 0.0) * 1_099_511_627_776.0).to(tl.int64)
    return tl.sum(counts, 0).to(tl.float32) * (1.0 / 1_099_511_627_776.0)


@triton.jit
def only_numbers(ranking, is_expert):
    """The ranking with minus infinity for whatever is no expert and no number.

    Comparisons with what is no number could choose an expert that does not exist.
    """
    return tl.where(is_expert & (ranking > -float("inf")), ranking, -float("inf"))


@triton.jit
def sort_keys(ranking):
    """Integers in the order of float32 values, of which two zeros are equal: the hardware has their maximum at once."""
    bits = (ranking + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def take_best(keys, scores, experts, IS_RANKING: tl.constexpr):
    """The first of the experts that rank highest, its score, and the keys without it.

    Args:
        IS_RANKING: whether scores are what experts are ranked by.
    """
    highest = tl.max(keys, 0)
    best = tl.min(tl.where(keys == highest, experts, experts.shape[0]), 0)
    is_best = experts == best
    if IS_RANKING:
        score = (highest ^ ((highest >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        score = tl.where(score > -float("inf"), score, float("nan"))  # what is no number ranked last
    else:
        score = tl.sum(tl.where(is_best, scores, 0.0), 0)
    return best, score, tl.where(is_best, _LAST, keys)


@triton.jit
def _draw_scores(first_logit, experts):
    """Evenly distributed scores: a hash of the bits of a token's first logit and of each expert's number."""
    bits = first_logit.to(tl.uint32, bitcast=True) * 0x9E3779B1 ^ experts.to(tl.uint32) * 0x85EBCA6B
    bits = (bits ^ bits >> 16) * 0x7FEB352D
    bits = (bits ^ bits >> 15) * 0x846CA68B
    return ((bits ^ bits >> 16) >> 8).to(tl.float32) * (1.0 / 16_777_216)
