"""The Triton kernels behind :mod:`octavo.kernels.triton.routing`.

Logits are sums of parts: each part adds up ``PART_SIZE`` features from zero, and parts are added in order. The tensor
cores work on the same units whatever a program's tile is, so a token's logits do not depend on the batch. Neither does
the choice: it adds up in an order that the code states, or in integers. Weights are float32, or of the type of ``x``.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.norm import add_rounded, scale_normed
from octavo.kernels.triton.routing_choice import only_numbers, score_logits, sort_keys, sum_powers, take_best


@triton.jit(do_not_specialize=["num_tokens"])
def logits_kernel(
    x,
    weight,
    bias,
    logits,
    num_tokens,
    num_experts,
    num_features,
    x_stride,
    BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a tile of tokens and experts; grid (tiles of tokens, tiles of experts, parts or 1).

    Split, each part is stored by itself, ``[parts, tokens, experts]`` without a bias.
    """
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    experts = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    is_token, is_expert = tokens < num_tokens, experts < num_experts
    x_rows = x + tokens.to(tl.int64)[:, None] * x_stride
    weight_rows = weight + experts.to(tl.int64)[:, None] * num_features
    part = tl.program_id(2)
    if IS_SPLIT:
        total = _add_part(x_rows, weight_rows, is_token, is_expert, part, num_features, PART_SIZE, BLOCK_K, PDL)
    else:
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        own, total = tl.zeros((BLOCK_T, BLOCK_E), tl.float32), tl.zeros((BLOCK_T, BLOCK_E), tl.float32)
        for start in range(0, PART_SIZE * NUM_PARTS, BLOCK_K):
            columns = start + tl.arange(0, BLOCK_K)
            is_column = (columns < num_features)[None, :]
            x_tile = tl.load(x_rows + columns[None, :], is_token[:, None] & is_column, other=0.0)
            weight_tile = tl.load(weight_rows + columns[None, :], is_expert[:, None] & is_column, other=0.0)
            own = _multiply(x_tile, weight_tile, own)
            is_end = (start + BLOCK_K) % PART_SIZE == 0
            total = tl.where(is_end, total + own, total)
            own = tl.where(is_end, 0.0, own)
        if bias is not None:
            total += tl.load(bias + experts, is_expert, other=0.0)[None, :]
    spots = logits + (part * num_tokens + tokens.to(tl.int64)[:, None]) * num_experts + experts[None, :]
    tl.store(spots, total, is_token[:, None] & is_expert[None, :])


@triton.jit(do_not_specialize=["eps"])
def normed_logits_kernel(
    x,
    residual,
    norm,
    eps,
    total,
    normed,
    weight,
    logits,
    places,
    num_experts,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART_SIZE: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    CHOSEN_BINS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes one part of logits of one token, after its norm; grid (tiles of experts, parts).

    The first tile's programs store the normed row, and the sum with the residual if there is one. The first program
    marks all places of the choice as empty.
    """
    experts = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    is_expert = (experts < num_experts)[:, None]
    part = tl.program_id(1)
    weight_rows = weight + experts.to(tl.int64)[:, None] * SIZE
    columns = part * PART_SIZE + tl.arange(0, BLOCK_K)
    # The part's first weights are on their way before the wait.
    scale = tl.load(norm + columns, columns < SIZE, other=0.0)
    weight_tile = tl.load(weight_rows + columns[None, :], is_expert & (columns < SIZE)[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = _sum_of(x, residual, tl.arange(0, BLOCK), SIZE).to(tl.float32)
    # Requested before warps wait for each other's squares.
    values = _sum_of(x, residual, columns, SIZE)
    rate = tl.rsqrt(tl.sum(row * row, axis=0) / SIZE + eps)
    own = tl.zeros((BLOCK_T, BLOCK_E), tl.float32)
    for step in tl.static_range(PART_SIZE // BLOCK_K):
        if step > 0:
            columns += BLOCK_K
            scale = tl.load(norm + columns, columns < SIZE, other=0.0)
            weight_tile = tl.load(weight_rows + columns[None, :], is_expert & (columns < SIZE)[None, :], other=0.0)
            values = _sum_of(x, residual, columns, SIZE)
        scaled = scale_normed(values.to(tl.float32) * rate, scale, values.dtype)
        if tl.program_id(0) == 0:
            tl.store(normed + columns, scaled, columns < SIZE)
            if residual is not None:
                tl.store(total + columns, values, columns < SIZE)
        x_tile = tl.where(tl.arange(0, BLOCK_T)[:, None] == 0, scaled[None, :], 0.0)
        own = _multiply(x_tile, weight_tile, own)
    if (tl.program_id(0) == 0) & (part == 0):
        place = tl.arange(0, CHOSEN_BINS)
        tl.store(places + place, -1, place < NUM_CHOSEN)
    own = tl.sum(tl.where(tl.arange(0, BLOCK_T)[:, None] == 0, own, 0.0), 0)
    tl.store(logits + part * num_experts + experts, own, experts < num_experts)


@triton.jit
def _sum_of(x, residual, columns, SIZE: tl.constexpr):
    """A row's values, with the residual's added if there is one."""
    values = tl.load(x + columns, columns < SIZE, other=0.0)
    if residual is not None:
        values = add_rounded(values, tl.load(residual + columns, columns < SIZE, other=0.0))
    return values


@triton.jit(do_not_specialize=["size"])
def add_parts_kernel(
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


@triton.jit(do_not_specialize=["num_tokens"])
def choose_kernel(
    parts,
    bias,
    correction,
    chosen,
    weights,
    num_tokens,
    scale,
    NUM_PARTS: tl.constexpr,
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
    AT_ONCE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program chooses the experts of ``AT_ONCE`` tokens; of equal ones the first. Grid (blocks of tokens).

    Args:
        parts: ``[NUM_PARTS, tokens, experts]``, parts of the logits, which are added in order.
        bias: added to the sum of the parts, or None.
    """
    experts, places = tl.arange(0, NUM_BINS), tl.arange(0, CHOSEN_BINS)
    is_expert = experts < NUM_EXPERTS
    # A softmax keeps the order of logits: these take the place of scores where nothing else needs those.
    IS_LOGIT: tl.constexpr = SCORE == "softmax" and correction is None and NUM_OPEN == NUM_GROUPS
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for turn in tl.static_range(AT_ONCE):
        token = tl.program_id(0).to(tl.int64) * AT_ONCE + turn
        if AT_ONCE > 1:
            token = tl.minimum(token, num_tokens - 1)  # the last one again, rather than none
        spots = parts + token * NUM_EXPERTS + experts
        logit = tl.zeros((NUM_BINS,), tl.float32)
        for _ in tl.static_range(NUM_PARTS):
            logit += tl.load(spots, is_expert, other=0.0)
            spots += num_tokens.to(tl.int64) * NUM_EXPERTS
        if bias is not None:
            logit += tl.load(bias + experts, is_expert, other=0.0)
        logit = tl.where(is_expert, logit, -float("inf"))
        scores = logit
        if not IS_LOGIT:
            scores = score_logits(logit, experts, SCORE)
        ranking = scores
        if correction is not None:
            ranking += tl.load(correction + experts, is_expert, other=0.0)
        ranking = only_numbers(ranking, is_expert)
        if NUM_OPEN < NUM_GROUPS:
            ranking = _only_open_groups(
                ranking, experts, NUM_EXPERTS // NUM_GROUPS, NUM_GROUPS, GROUP_BINS, NUM_OPEN, NUM_RANKED
            )

        own, own_weights = tl.zeros((CHOSEN_BINS,), tl.int64), tl.zeros((CHOSEN_BINS,), tl.float32)
        total = 0.0
        keys = sort_keys(ranking)
        if IS_LOGIT:
            top = tl.max(logit, 0)
            divisor = sum_powers(logit, top)
        for place in range(NUM_CHOSEN):
            best, score, keys = take_best(keys, scores, experts, correction is None)
            if IS_LOGIT:
                score = tl.exp(score - top) / divisor
            own = tl.where(places == place, best.to(tl.int64), own)
            own_weights = tl.where(places == place, score, own_weights)
            total += score
        if RENORMALISES:
            own_weights = own_weights / (total + 1e-20)
        spots = token * NUM_CHOSEN + places
        tl.store(chosen + spots, own, places < NUM_CHOSEN)
        tl.store(weights + spots, own_weights * scale, places < NUM_CHOSEN)


@triton.jit
def _add_part(
    x_rows,
    weight_rows,
    is_token,
    is_expert,
    part,
    num_features,
    PART_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One part of a tile's sums; its first weights are loaded before the wait for the kernel that computes ``x``."""
    own = tl.zeros((x_rows.shape[0], weight_rows.shape[0]), tl.float32)
    for step in tl.static_range(PART_SIZE // BLOCK_K):
        columns = part * PART_SIZE + step * BLOCK_K + tl.arange(0, BLOCK_K)
        is_column = (columns < num_features)[None, :]
        weight_tile = tl.load(weight_rows + columns[None, :], is_expert[:, None] & is_column, other=0.0)
        if PDL and step == 0:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        x_tile = tl.load(x_rows + columns[None, :], is_token[:, None] & is_column, other=0.0)
        own = _multiply(x_tile, weight_tile, own)
    return own


@triton.jit
def _multiply(x_tile, weight_tile, total):
    """Products with float32's precision on tensor cores: of 16 bits in one step, of float32 by three of TF32 parts."""
    if weight_tile.dtype == tl.float32:
        total = tl.dot(x_tile.to(tl.float32), weight_tile.T, total, input_precision="tf32x3")
    else:
        total = tl.dot(x_tile, weight_tile.T, total)
    return total


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
