"""Latent attention on a GPU; see :mod:`octavo.kernels.latent_attention`.

All heads of a token share the cached vectors, so a tile of queries is some tokens times some heads: one token of
decoding rows, several of the others. If there are fewer tiles than the device can run, each sequence is split among
programs, and a second launch merges their results. A cached vector is loaded once, as key and as value. If each token
attends to chosen ones, a tile is one token, of whatever row.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import AttentionInputs
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.latent_attention import LatentSpec
from octavo.kernels.triton.cache_scales import latent_scale_arguments, weighed_type
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors
from octavo.kernels.triton.prefill_tiles import count_tiles, find_row, find_tile
from octavo.kernels.triton.widening import widen_values

_LOG2E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-1e30)
"""The initial maximum: below all scores, but finite, so that its difference to itself is 0 and not NaN."""

_MERGED_VALUES = 4096
"""Values that a program merges, all of whose loads are in flight together: 32 per thread."""


class LatentTile(NamedTuple):
    """A program's work: queries (tokens times heads), cached tokens per iteration, warps, pipeline depth."""

    num_queries: int
    num_heads: int
    num_tokens: int
    num_warps: int
    num_stages: int


def choose_tile(num_heads: int, max_query_len: int, dtype: torch.dtype) -> LatentTile:
    """The tile for rows of up to ``max_query_len`` tokens."""
    if dtype == torch.float32:
        return LatentTile(1 if max_query_len == 1 else 2, 16, 16, 8, 1)
    heads = min(max(triton.next_power_of_2(num_heads), MIN_DOT_SIZE), 64)
    if max_query_len == 1:
        return LatentTile(1, heads, 32, 4 if heads == MIN_DOT_SIZE else 8, 3)
    return LatentTile(max(64 // heads, 2), min(heads, 32), 32, 8, 2)


def choose_splits(num_tiles: int, max_tokens: int, num_multiprocessors: int) -> int:
    """Programs per tile such that about two run on each multiprocessor, with at least 128 tokens each."""
    return max(min(2 * num_multiprocessors // num_tiles, triton.cdiv(max_tokens, 128), 64), 1)


def latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    inputs: AttentionInputs,
    spec: LatentSpec,
    scales: CacheScales | None = None,
    sinks: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention over cached latent vectors; see :func:`octavo.kernels.latent_attention.latent_attention`.

    Padding rows of the result are arbitrary.
    """
    shape = inputs.shape
    out = torch.empty(*q.shape[:2], spec.rank, dtype=q.dtype, device=q.device)
    if chosen is not None:
        tile, num_tokens = choose_tile(spec.num_heads, 1, q.dtype), shape.num_tokens
        _attend(q, cache, inputs, spec, scales, sinks, chosen, out, tile, num_tokens, num_tokens)
        return out
    if shape.has_decodes:
        tile = choose_tile(spec.num_heads, 1, q.dtype)
        _attend(q, cache, inputs, spec, scales, sinks, None, out, tile, shape.num_rows, shape.num_rows)
    if shape.has_chunks:
        tile = choose_tile(spec.num_heads, shape.max_query_len, q.dtype)
        num_tiles = shape.num_tokens // tile.num_queries + shape.num_rows
        _attend(q, cache, inputs, spec, scales, sinks, None, out, tile, num_tiles, shape.num_tokens)
    return out


def _attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    inputs: AttentionInputs,
    spec: LatentSpec,
    scales: CacheScales | None,
    sinks: torch.Tensor | None,
    chosen: torch.Tensor | None,
    out: torch.Tensor,
    tile: LatentTile,
    num_tiles: int,
    num_tokens: int,
) -> None:
    """Launch the kernel for decoding rows, for the others or, with chosen tokens, for all.

    Args:
        num_tiles: upper bound of the tiles of tokens.
        num_tokens: upper bound of the last token among these rows.
    """
    rows, tables = inputs.rows, inputs.block_tables
    num_programs = num_tiles * triton.cdiv(spec.num_heads, tile.num_heads)
    max_tokens = tables.shape[1] * inputs.block_size if chosen is None else chosen.shape[1]
    splits = choose_splits(num_programs, max_tokens, num_multiprocessors(q.device))
    partials = logsums = None
    if splits > 1:
        partials = torch.empty(num_tokens, splits, spec.num_heads, spec.rank, dtype=torch.float32, device=q.device)
        logsums = torch.empty(partials.shape[:3], dtype=torch.float32, device=q.device)
    assert q.stride(2) == cache.stride(2) == 1 and (chosen is None or chosen.is_contiguous())
    _latent_kernel[(num_programs, splits)](
        q, cache, tables, inputs.slots, rows.query_starts, rows.seq_lens, rows.counts, out, partials, logsums,
        sinks, chosen, q.stride(0), q.stride(1), cache.stride(0), cache.stride(1), tables.stride(0), tables.shape[1],
        spec.scale * _LOG2E.value, **latent_scale_arguments(scales, cache.dtype),
        NUM_HEADS=spec.num_heads, RANK=spec.rank, ROPE=spec.rope_dim,
        BLOCK_R=max(triton.next_power_of_2(spec.rank), MIN_DOT_SIZE),
        BLOCK_ROPE=max(triton.next_power_of_2(spec.rope_dim), MIN_DOT_SIZE),
        BLOCK_SIZE=inputs.block_size, QUERIES=tile.num_queries, HEADS=tile.num_heads, TOKENS=tile.num_tokens,
        CHOSEN=0 if chosen is None else chosen.shape[1], PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps, num_stages=tile.num_stages, **dependent_launch(q.device),
    )  # fmt: skip
    if partials is not None:
        all_splits = triton.next_power_of_2(splits)
        dims = min(_MERGED_VALUES // all_splits, triton.next_power_of_2(spec.rank))
        _merge_kernel[(num_tokens, spec.num_heads, triton.cdiv(spec.rank, dims))](
            partials, logsums, rows.counts, sinks, out, splits,
            NUM_HEADS=spec.num_heads, RANK=spec.rank, BLOCK_R=dims, BLOCK_S=all_splits,
            HAS_DECODES=tile.num_queries == 1, HAS_CHUNKS=tile.num_queries > 1 or chosen is not None,
            num_warps=4, **dependent_launch(q.device),
        )  # fmt: skip


@triton.jit(do_not_specialize=["table_width"])
def _latent_kernel(
    q,  # [T, H, RANK + ROPE]
    cache,  # [blocks, BLOCK_SIZE, RANK + ROPE]
    tables,  # [S, M]
    slots,
    starts,
    seq_lens,
    counts,
    out,  # [T, H, RANK]
    partials,  # [T, splits, H, RANK], or None if the sequence is not split
    logsums,  # [T, splits, H]
    sinks,  # [H] logits without values, or None
    chosen,  # [T, CHOSEN] positions and −1 behind them, or None for all
    q_stride,
    q_head_stride,
    block_stride,
    token_stride,
    table_stride,
    table_width,
    scale,  # to base-2 logits
    scales,  # of a quantised cache [blocks, BLOCK_SIZE], or None
    scale_block,
    scale_token,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHOSEN: tl.constexpr,
    PRECISION: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program attends with ``QUERIES`` tokens' ``HEADS`` heads to a part of their row; grid (tiles · heads, splits).

    With ``QUERIES`` of 1 the tiles are the decoding rows or, with chosen tokens, all of the step; otherwise they are
    tiles of the other rows' tokens.
    """
    head_tiles: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    tile, head_tile = tl.program_id(0) // head_tiles, tl.program_id(0) % head_tiles
    split, num_splits = tl.program_id(1), tl.num_programs(1)
    num_decode, skipped, num_rows, num_tiles = count_tiles(starts, counts, QUERIES)
    if CHOSEN:
        num_tiles = tl.load(counts + 2)
    elif QUERIES == 1:
        num_tiles = num_decode
    # Programs with nothing to do wait, too: in a step without such rows there are no others.
    if tile >= num_tiles:
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    if CHOSEN:
        row = find_row(tile, starts, num_decode, num_rows)
        start = tl.load(starts + row)
        length, first_query = tl.load(starts + row + 1) - start, tile - start
    elif QUERIES == 1:
        row, start, length, first_query = tile, tile, 1, 0
    else:
        # The last tiles attend to most tokens, so they start first.
        row, start, length, first_query = find_tile(
            num_tiles - 1 - tile, starts, num_decode, skipped, num_rows, QUERIES
        )
        if first_query >= length:
            if PDL:
                tl.extra.cuda.gdc_wait()
            return
    seq_len = tl.load(seq_lens + row)
    table = tables + tl.load(slots + row).to(tl.int64) * table_stride

    queries = first_query + tl.arange(0, QUERIES * HEADS) // HEADS
    heads = head_tile * HEADS + tl.arange(0, QUERIES * HEADS) % HEADS
    is_query = (queries < length) & (heads < NUM_HEADS)
    tokens = (start + queries).to(tl.int64)
    q_positions = seq_len - length + queries

    # A step that runs ahead may reach past the longest sequence; its results are never read.
    end = tl.minimum(seq_len - length + tl.minimum(first_query + QUERIES, length), table_width * BLOCK_SIZE)
    if CHOSEN:
        end = tl.minimum(end, CHOSEN)
        chosen += tile.to(tl.int64) * CHOSEN
    tiles_per_split = tl.cdiv(tl.cdiv(end, TOKENS), num_splits)
    first = split * tiles_per_split * TOKENS
    stop = tl.minimum(first + tiles_per_split * TOKENS, end)
    # Rows and block tables are older than the predecessor; chosen tokens may be its own.
    if PDL and CHOSEN:
        tl.extra.cuda.gdc_wait()
    blocks, next_positions = _find(first, stop, table, table_width, chosen, BLOCK_SIZE, TOKENS)
    if PDL and not CHOSEN:
        tl.extra.cuda.gdc_wait()
    if PDL and QUERIES == 1:
        tl.extra.cuda.gdc_launch_dependents()
    dims, rope_dims = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_ROPE)
    q_at = q + (tokens * q_stride + heads * q_head_stride)[:, None]
    q_main = tl.load(q_at + dims, is_query[:, None] & (dims < RANK), other=0.0)
    q_rope = tl.load(q_at + RANK + rope_dims, is_query[:, None] & (rope_dims < ROPE), other=0.0)
    peak = tl.full((QUERIES * HEADS,), _LOWEST, tl.float32)
    total = tl.zeros((QUERIES * HEADS,), tl.float32)
    acc = tl.zeros((QUERIES * HEADS, BLOCK_R), tl.float32)
    for tile_start in range(first, stop, TOKENS):
        positions = tile_start + tl.arange(0, TOKENS)
        is_token = positions < stop
        if CHOSEN:
            positions = next_positions
            is_token = is_token & (positions >= 0)
        if scales is not None:
            scales_at = scales + blocks.to(tl.int64) * scale_block + positions % BLOCK_SIZE * scale_token
            token_scales = tl.load(scales_at, is_token, other=0.0)
        at = cache + (blocks.to(tl.int64) * block_stride + positions % BLOCK_SIZE * token_stride)[:, None]
        # One tile ahead, so that no load of vectors waits for its address.
        blocks, next_positions = _find(tile_start + TOKENS, stop, table, table_width, chosen, BLOCK_SIZE, TOKENS)
        # Missing tokens are zeros: a weight of zero times garbage may be NaN.
        main_mask, rope_mask = is_token[:, None], is_token[:, None]
        if BLOCK_R > RANK:
            main_mask = main_mask & (dims < RANK)
        if BLOCK_ROPE > ROPE:
            rope_mask = rope_mask & (rope_dims < ROPE)
        main = tl.load(at + dims, main_mask, other=0.0)
        rope = tl.load(at + RANK + rope_dims, rope_mask, other=0.0)
        if scales is not None:
            main, rope = widen_values(main, q_main.dtype), widen_values(rope, q_main.dtype)
        scores = tl.dot(q_main, tl.trans(main), input_precision=PRECISION)
        scores = tl.dot(q_rope, tl.trans(rope), scores, input_precision=PRECISION) * scale
        if scales is not None:
            scores *= token_scales[None, :]
            main = main.to(weighed_type(q_main.dtype))
        is_seen = is_token[None, :]
        if QUERIES > 1:
            is_seen = is_seen & (positions[None, :] <= q_positions[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        decay = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * decay + tl.sum(weights, 1)
        if scales is not None:
            weights *= token_scales[None, :]
        acc = tl.dot(weights.to(main.dtype), main, acc * decay[:, None], input_precision=PRECISION)
        peak = new_peak
    if PDL and QUERIES > 1:
        tl.extra.cuda.gdc_launch_dependents()

    if sinks is not None and partials is None:
        logits = tl.load(sinks + heads, is_query, other=0.0) * _LOG2E
        new_peak = tl.maximum(peak, logits)
        total = total * tl.exp2(peak - new_peak) + tl.exp2(logits - new_peak)
        acc *= tl.exp2(peak - new_peak)[:, None]
        peak = new_peak
    # A part of which a query sees nothing has no weight in the merge.
    total = tl.where(total > 0.0, total, 1.0)
    values = acc / total[:, None]
    mask = is_query[:, None] & (dims < RANK)
    if partials is None:
        tl.store(out + ((tokens * NUM_HEADS + heads) * RANK)[:, None] + dims, values.to(out.dtype.element_ty), mask)
    else:
        places = (tokens * num_splits + split) * NUM_HEADS + heads
        tl.store(logsums + places, peak + tl.log2(total), is_query)
        tl.store(partials + (places * RANK)[:, None] + dims, values, mask)


@triton.jit
def _find(first, stop, table, table_width, chosen, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr):
    """Blocks and positions of a tile of the tokens that a query sees; −1 is none."""
    places = first + tl.arange(0, TOKENS)
    if chosen is None:
        positions, entries = places, places // BLOCK_SIZE
    else:
        positions = tl.load(chosen + places, places < stop, other=-1)
        entries = tl.minimum(tl.maximum(positions, 0) // BLOCK_SIZE, table_width - 1)
    return tl.load(table + entries, places < stop, other=0), positions


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    partials,
    logsums,
    counts,
    sinks,
    out,
    num_splits,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HAS_DECODES: tl.constexpr,
    HAS_CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program merges the parts of a slice of one token's head; grid (tokens, heads, slices)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_decode, num_tokens = tl.load(counts + 1), tl.load(counts + 2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    is_own = HAS_DECODES if token < num_decode else HAS_CHUNKS
    if is_own & (token < num_tokens):
        splits = tl.arange(0, BLOCK_S)
        dims = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
        places = token * num_splits * NUM_HEADS + head + splits * NUM_HEADS
        sums = tl.load(logsums + places, splits < num_splits, other=float("-inf"))
        peak = tl.max(sums, 0)
        if sinks is not None:
            logit = tl.load(sinks + head) * _LOG2E
            peak = tl.maximum(peak, logit)
        weights = tl.exp2(sums - peak)
        total = tl.sum(weights, 0)
        if sinks is not None:
            total += tl.exp2(logit - peak)
        mask = (weights > 0.0)[:, None] & (dims < RANK)
        values = tl.load(partials + places[:, None] * RANK + dims, mask, other=0.0)
        merged = tl.sum(values * weights[:, None], 0) / total
        out_at = out + (token * NUM_HEADS + head) * RANK + dims
        tl.store(out_at, merged.to(out.dtype.element_ty), dims < RANK)
