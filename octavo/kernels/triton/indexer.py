"""The choice of the tokens that attention sees, on a GPU; see :mod:`octavo.kernels.indexer`.

One launch computes the scores of some of the step's tokens, several programs to a token; the next one finds, a program
to a token, the lowest score that is chosen and writes the positions in order. No score and no choice depends on how
many programs there are. Tokens that see no more than what is chosen have no scores.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import AttentionInputs
from octavo.kernels.indexer import MAX_SCORES
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors
from octavo.kernels.triton.prefill_tiles import find_row
from octavo.kernels.triton.sampling_search import search

_MAX_TILE = 1024
"""Scores that a choosing program reads at a time."""


def choose_tokens(
    q: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, inputs: AttentionInputs, num_chosen: int
) -> torch.Tensor:
    """Choose tokens; see :func:`octavo.kernels.indexer.choose_tokens`. Rows past the step's padding are arbitrary."""
    rows, tables, num_tokens = inputs.rows, inputs.block_tables, inputs.shape.num_tokens
    num_heads, head_dim = q.shape[1:]
    keys = 16 if q.dtype == torch.float32 else 64  # per iteration
    max_tokens = tables.shape[1] * inputs.block_size
    at_once = max(min(MAX_SCORES // max_tokens, num_tokens), 1)
    chosen = torch.empty(len(q), num_chosen, dtype=torch.int32, device=q.device)
    scores = torch.empty(at_once, max_tokens, dtype=torch.float32, device=q.device)
    assert q.stride(2) == cache.stride(2) == weights.stride(1) == 1
    of_rows = tables, inputs.slots, rows.query_starts, rows.seq_lens, rows.counts
    for first in range(0, num_tokens, at_once):
        count = min(at_once, num_tokens - first)
        # Several programs to a multiprocessor, so that the last ones to start do not leave many idle.
        parts = min(triton.cdiv(8 * num_multiprocessors(q.device), count), triton.cdiv(max_tokens, keys))
        _score_kernel[(count, parts)](
            q, weights, cache, *of_rows, scores, first,
            q.stride(0), q.stride(1), weights.stride(0), cache.stride(0), cache.stride(1),
            tables.stride(0), tables.shape[1],
            NUM_HEADS=num_heads, HEAD_DIM=head_dim,
            BLOCK_H=max(triton.next_power_of_2(num_heads), MIN_DOT_SIZE),
            BLOCK_D=max(triton.next_power_of_2(head_dim), MIN_DOT_SIZE),
            BLOCK_SIZE=inputs.block_size, KEYS=keys, CHOSEN=num_chosen,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=4, num_stages=3, **dependent_launch(q.device),
        )  # fmt: skip
        _choose_kernel[(count,)](
            scores, rows.query_starts, rows.seq_lens, rows.counts, chosen, first, max_tokens,
            CHOSEN=num_chosen, TILE=min(triton.next_power_of_2(max(max_tokens, MIN_DOT_SIZE)), _MAX_TILE),
            num_warps=8, **dependent_launch(q.device),
        )  # fmt: skip
    return chosen


@triton.jit
def _num_seen(token, row, starts, seq_lens, max_tokens):
    """How many tokens a token sees, itself included; one past the longest sequence is never read."""
    return tl.minimum(tl.load(seq_lens + row) - tl.load(starts + row + 1) + token + 1, max_tokens)


@triton.jit(do_not_specialize=["first_token", "table_width"])
def _score_kernel(
    q,  # [T, H, D]
    weights,  # [T, H] float32
    cache,  # [blocks, BLOCK_SIZE, D]
    tables,  # [S, M]
    slots,
    starts,
    seq_lens,
    counts,
    scores,  # [tokens at once, M · BLOCK_SIZE]
    first_token,
    q_stride,
    q_head_stride,
    weights_stride,
    block_stride,
    token_stride,
    table_stride,
    table_width,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    CHOSEN: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program scores every ``n``-th tile of keys for one token; grid (tokens at once, n)."""
    place, part, num_parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    token = first_token + place
    num_rows, num_decode, num_tokens = tl.load(counts), tl.load(counts + 1), tl.load(counts + 2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if token >= num_tokens:
        return
    row = find_row(token, starts, num_decode, num_rows)
    max_tokens = table_width * BLOCK_SIZE
    num_seen = _num_seen(token, row, starts, seq_lens, max_tokens)
    if num_seen <= CHOSEN:
        return
    table = tables + tl.load(slots + row).to(tl.int64) * table_stride
    heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    q_at = q + token.to(tl.int64) * q_stride + (heads * q_head_stride)[:, None] + dims
    queries = tl.load(q_at, (heads < NUM_HEADS)[:, None] & (dims < HEAD_DIM), other=0.0)
    shares = tl.load(weights + token.to(tl.int64) * weights_stride + heads, heads < NUM_HEADS, other=0.0)
    scores += place.to(tl.int64) * max_tokens
    first = part * KEYS
    blocks = tl.load(table + (first + tl.arange(0, KEYS)) // BLOCK_SIZE, first + tl.arange(0, KEYS) < num_seen, other=0)
    for start in range(first, num_seen, num_parts * KEYS):
        positions = start + tl.arange(0, KEYS)
        is_seen = positions < num_seen
        at = cache + (blocks.to(tl.int64) * block_stride + positions % BLOCK_SIZE * token_stride)[:, None]
        later = positions + num_parts * KEYS
        blocks = tl.load(table + later // BLOCK_SIZE, later < num_seen, other=0)
        keys = tl.load(at + dims, is_seen[:, None] & (dims < HEAD_DIM), other=0.0)
        found = tl.maximum(tl.dot(queries, tl.trans(keys), input_precision=PRECISION), 0.0)
        tl.store(scores + positions, tl.sum(found * shares[:, None], 0), is_seen)


@triton.jit(do_not_specialize=["first_token", "max_tokens"])
def _choose_kernel(
    scores,  # [tokens at once, max_tokens]
    starts,
    seq_lens,
    counts,
    chosen,  # [T, CHOSEN]
    first_token,
    max_tokens,
    CHOSEN: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program writes the positions that one token attends to."""
    place = tl.program_id(0)
    token = first_token + place
    num_rows, num_decode, num_tokens = tl.load(counts), tl.load(counts + 1), tl.load(counts + 2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    num_seen = 0
    if token < num_tokens:
        num_seen = _num_seen(token, find_row(token, starts, num_decode, num_rows), starts, seq_lens, max_tokens)
    scores += place.to(tl.int64) * max_tokens
    chosen += token.to(tl.int64) * CHOSEN
    tile = tl.arange(0, TILE)
    num_written = num_seen
    if num_seen <= CHOSEN:
        for start in range(0, num_seen, TILE):
            tl.store(chosen + start + tile, start + tile, start + tile < num_seen)
    else:
        num_written = _choose(scores, num_seen, chosen, CHOSEN, TILE)
    for start in range(num_written, CHOSEN, TILE):
        tl.store(chosen + start + tile, tl.full([TILE], -1, tl.int32), start + tile < CHOSEN)


@triton.jit
def _choose(scores, num, chosen, CHOSEN: tl.constexpr, TILE: tl.constexpr):
    """Write the places of the ``CHOSEN`` highest of ``num`` scores in rising order; returns how many there are.

    They are fewer only among NaNs, which are never chosen.
    """
    tile = tl.arange(0, TILE)
    least, best = tl.full([TILE], float("inf"), tl.float32), tl.full([TILE], -float("inf"), tl.float32)
    for start in tl.range(0, num, TILE):
        x = tl.load(scores + start + tile, start + tile < num, other=float("nan"))
        is_number = tl.abs(x) >= 0.0
        least = tl.minimum(least, tl.where(is_number, x, least))
        best = tl.maximum(best, tl.where(is_number, x, best))
    cut = search(scores, num, CHOSEN, tl.min(least, 0), tl.max(best, 0), 0.0, False, 0, TILE, 8, 2)
    num_above = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, num, TILE):
        x = tl.load(scores + start + tile, start + tile < num, other=-float("inf"))
        num_above += (x > cut).to(tl.int32)
    # Of the scores that equal the lowest, the first ones.
    num_equal, num_written = CHOSEN - tl.sum(num_above, 0), 0
    for start in range(0, num, TILE):
        x = tl.load(scores + start + tile, start + tile < num, other=-float("inf"))
        is_equal = (x == cut) & (start + tile < num)
        is_chosen = (x > cut) | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) <= num_equal))
        num_equal -= tl.sum(is_equal.to(tl.int32), 0)
        places = num_written + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
        tl.store(chosen + places, start + tile, is_chosen)
        num_written += tl.sum(is_chosen.to(tl.int32), 0)
    return num_written
