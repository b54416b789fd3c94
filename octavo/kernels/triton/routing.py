"""The choice of each token's experts: a GEMM for the logits, and a program per token for the choice."""

from functools import partial

import torch
import triton
import triton.language as tl

from octavo.kernels.routing import LogitsOp
from octavo.kernels.routing import choose_experts as reference
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch
from octavo.records.experts import Routing

_BLOCK = 16
"""Tokens and experts of a program. One size for all batches, so that a token's logits do not depend on the others."""

_NUM_PARTS = 16
"""Sums over the features are made of so many parts, each from zero, whether one program computes all or one only."""

_SUM_BLOCK = 128
"""Logits of a program that adds up parts."""

_MAX_SPLIT_TOKENS = 64
"""Tokens up to which each part has a program of its own: few programs could not wait for the memory side by side."""


def make_logits(weight: torch.Tensor, bias: torch.Tensor | None) -> LogitsOp:
    """A router's GEMM; see :func:`octavo.kernels.routing.make_logits`."""
    return partial(router_logits, weight=weight, bias=bias)


def router_logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A logit for each token and expert; see :data:`octavo.kernels.routing.LogitsOp`."""
    num_tokens, num_experts = len(x), len(weight)
    logits = torch.empty(num_tokens, num_experts, dtype=torch.float32, device=x.device)
    if not num_tokens:
        return logits
    is_split = num_tokens <= _MAX_SPLIT_TOKENS
    parts = logits.new_empty(_NUM_PARTS, num_tokens, num_experts) if is_split else logits
    num_features = x.shape[1]
    part_size = triton.cdiv(num_features, _NUM_PARTS)
    block_k = max(MIN_DOT_SIZE, min(128, triton.next_power_of_2(part_size)))
    tiles = (triton.cdiv(num_tokens, _BLOCK), triton.cdiv(num_experts, _BLOCK))
    _logits_kernel[(*tiles, _NUM_PARTS if is_split else 1)](
        x,
        weight,
        bias,
        parts,
        num_tokens,
        num_experts,
        num_features,
        x.stride(0),
        BLOCK=_BLOCK,
        BLOCK_K=block_k,
        PART_SIZE=triton.cdiv(part_size, block_k) * block_k,
        NUM_PARTS=_NUM_PARTS,
        IS_SPLIT=is_split,
        num_warps=4,
        num_stages=3,
        **dependent_launch(x.device),
    )
    if is_split:
        size = logits.numel()
        _add_parts_kernel[(triton.cdiv(size, _SUM_BLOCK),)](
            parts,
            bias,
            logits,
            size,
            num_experts,
            NUM_PARTS=_NUM_PARTS,
            BLOCK=_SUM_BLOCK,
            num_warps=4,
            **dependent_launch(x.device),
        )
    return logits


def choose_experts(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts and their weights; see :func:`octavo.kernels.routing.choose_experts`."""
    if routing.score == "sparsemixer":
        return reference.reference(logits, correction, routing)
    num_tokens, num_experts = logits.shape
    chosen = torch.empty(num_tokens, routing.num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(num_tokens, routing.num_chosen, dtype=torch.float32, device=logits.device)
    if num_tokens:
        _choose_kernel[(num_tokens,)](
            logits,
            correction,
            chosen,
            weights,
            routing.scale,
            NUM_EXPERTS=num_experts,
            NUM_BINS=triton.next_power_of_2(num_experts),
            NUM_CHOSEN=routing.num_chosen,
            CHOSEN_BINS=triton.next_power_of_2(routing.num_chosen),
            NUM_GROUPS=routing.num_groups,
            GROUP_BINS=triton.next_power_of_2(routing.num_groups),
            NUM_OPEN=routing.num_open_groups,
            NUM_RANKED=routing.num_ranked,
            SCORE=routing.score,
            RENORMALISES=routing.renormalises,
            num_warps=1 if num_experts <= 128 else 4,
            **dependent_launch(logits.device),
        )
    return chosen, weights


@triton.jit
def _logits_kernel(
    x,
    weight,
    bias,
    logits,
    num_tokens,
    num_experts,
    num_features,
    x_stride,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a square of tokens and experts; grid (blocks of tokens, blocks of experts, parts or 1).

    A part adds up ``PART_SIZE`` features; split, each is stored by itself. Three products of TF32 parts keep float32's
    precision on tensor cores.
    """
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    experts = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token, is_expert = tokens < num_tokens, experts < num_experts
    x_rows = x + tokens.to(tl.int64)[:, None] * x_stride
    weight_rows = weight + experts.to(tl.int64)[:, None] * num_features
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(2) if IS_SPLIT else 0
    first = part * PART_SIZE
    own, total = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, PART_SIZE if IS_SPLIT else PART_SIZE * NUM_PARTS, BLOCK_K):
        columns = first + start + tl.arange(0, BLOCK_K)
        is_column = (columns < num_features)[None, :]
        x_tile = tl.load(x_rows + columns[None, :], is_token[:, None] & is_column, other=0.0).to(tl.float32)
        weight_tile = tl.load(weight_rows + columns[None, :], is_expert[:, None] & is_column, other=0.0)
        own = tl.dot(x_tile, weight_tile.T, own, input_precision="tf32x3")
        is_end = (start + BLOCK_K) % PART_SIZE == 0
        total = tl.where(is_end, total + own, total)
        own = tl.where(is_end, 0.0, own)
    if bias is not None and not IS_SPLIT:
        total += tl.load(bias + experts, is_expert, other=0.0)[None, :]
    spots = logits + (part * num_tokens + tokens.to(tl.int64)[:, None]) * num_experts + experts[None, :]
    tl.store(spots, total, is_token[:, None] & is_expert[None, :])


@triton.jit(do_not_specialize=["size"])
def _add_parts_kernel(
    parts,
    bias,
    logits,
    size,
    num_experts,
    NUM_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program adds up ``BLOCK`` logits, part after part; grid (blocks)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(NUM_PARTS):
        total += tl.load(parts + part * size + index, index < size, other=0.0)
    if bias is not None:
        total += tl.load(bias + index % num_experts, index < size, other=0.0)
    tl.store(logits + index, total, index < size)


@triton.jit
def _choose_kernel(
    logits,
    correction,
    chosen,
    weights,
    scale,
    NUM_EXPERTS: tl.constexpr,
    NUM_BINS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    CHOSEN_BINS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP_BINS: tl.constexpr,
    NUM_OPEN: tl.constexpr,
    NUM_RANKED: tl.constexpr,
    SCORE: tl.constexpr,
    RENORMALISES: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program chooses one token's experts, one after the other; of equal ones the first. Grid (tokens)."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, NUM_BINS)
    is_expert = experts < NUM_EXPERTS
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    logit = tl.load(logits + token * NUM_EXPERTS + experts, is_expert, other=-float("inf"))
    if SCORE == "softmax":
        powers = tl.exp(logit - tl.max(logit, 0))
        scores = powers / tl.sum(powers, 0)
    elif SCORE == "sigmoid":
        scores = tl.sigmoid(logit)
    else:
        scores = _draw_scores(tl.load(logits + token * NUM_EXPERTS), experts)
    ranking = scores
    if correction is not None:
        ranking += tl.load(correction + experts, is_expert, other=0.0)
    # Whatever is no number ranks last: comparisons with it could choose an expert that does not exist.
    ranking = tl.where(is_expert & (ranking > -float("inf")), ranking, -float("inf"))
    if NUM_OPEN < NUM_GROUPS:
        ranking = _only_open_groups(
            ranking, experts, NUM_EXPERTS // NUM_GROUPS, NUM_GROUPS, GROUP_BINS, NUM_OPEN, NUM_RANKED
        )

    places = tl.arange(0, CHOSEN_BINS)
    own, own_weights = tl.zeros((CHOSEN_BINS,), tl.int64), tl.zeros((CHOSEN_BINS,), tl.float32)
    for place in range(NUM_CHOSEN):
        best = tl.argmax(ranking, 0)
        is_best = experts == best
        own = tl.where(places == place, best.to(tl.int64), own)
        own_weights = tl.where(places == place, tl.sum(tl.where(is_best, scores, 0.0), 0), own_weights)
        ranking = tl.where(is_best, -float("inf"), ranking)
    if RENORMALISES:
        own_weights = own_weights / (tl.sum(own_weights, 0) + 1e-20)
    spots = token * NUM_CHOSEN + places
    tl.store(chosen + spots, own, places < NUM_CHOSEN)
    tl.store(weights + spots, own_weights * scale, places < NUM_CHOSEN)


@triton.jit
def _draw_scores(first_logit, experts):
    """Evenly distributed scores: a hash of the bits of a token's first logit and of each expert's number."""
    bits = first_logit.to(tl.uint32, bitcast=True) * 0x9E3779B1 ^ experts.to(tl.uint32) * 0x85EBCA6B
    bits = (bits ^ bits >> 16) * 0x7FEB352D
    bits = (bits ^ bits >> 15) * 0x846CA68B
    return ((bits ^ bits >> 16) >> 8).to(tl.float32) * (1.0 / 16_777_216)


@triton.jit
def _only_open_groups(
    ranking,
    experts,
    GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP_BINS: tl.constexpr,
    NUM_OPEN: tl.constexpr,
    NUM_RANKED: tl.constexpr,
):
    """The ranking with minus infinity outside the groups whose best experts rank highest in sum."""
    groups = tl.arange(0, GROUP_BINS)
    group_of = experts // GROUP_SIZE
    table = tl.where(group_of[None, :] == groups[:, None], ranking[None, :], -float("inf"))
    totals = tl.where(groups < NUM_GROUPS, 0.0, -float("inf"))
    for _ in tl.static_range(NUM_RANKED):
        totals += tl.max(table, 1)
        table = tl.where(experts[None, :] == tl.argmax(table, 1)[:, None], -float("inf"), table)
    is_open = experts < 0
    for _ in tl.static_range(NUM_OPEN):
        best = tl.argmax(totals, 0)
        is_open = is_open | (group_of == best)
        totals = tl.where(groups == best, -float("inf"), totals)
    return tl.where(is_open, ranking, -float("inf"))
