"""Prefill attention on any Triton device, for any head size, paged or contiguous keys (arXiv:2307.08691).

A program computes one tile of a row's queries, for one head or packed for all heads of a group, over all visible keys.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.cache_scales import scale_arguments, weighed_type
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors
from octavo.kernels.triton.prefill_tiles import choose_heads_at_once, count_tiles, find_tile, split_index
from octavo.kernels.triton.widening import widen_values
from octavo.kernels.triton.window import first_visible

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes: query rows (tokens times packed heads), keys per iteration, warps, pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp2(x * (2.0 * 1.4426950408889634)) + 1.0)


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    q,
    positions,
    slopes,
    start,
    stop,
    first_key,
    seq_len,
    k_ptr,
    v_ptr,
    table_ptr,
    k_stride,
    v_stride,
    scale,
    softcap,
    window,
    scales,
    scale_part,
    scale_block,
    scale_token,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend to the keys ``[start, stop)``; unless ``MASKED``, all of them are visible to every query.

    Args:
        slopes: ``[BLOCK_M]``, what base-2 logits fall by for each token from key to query; None for nothing.
    """
    columns = tl.arange(0, D_PAD)
    for first in tl.range(start, stop, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        exists = (keys >= first_key) & (keys < seq_len)
        if PAGED:
            if MASKED:
                blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
            else:
                blocks = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
            k_rows = blocks * k_stride + (keys % BLOCK_SIZE) * D
            v_rows = blocks * v_stride + (keys % BLOCK_SIZE) * D
        else:
            k_rows = keys.to(tl.int64) * k_stride
            v_rows = keys.to(tl.int64) * v_stride
        k_at = k_ptr + k_rows[:, None] + columns[None, :]
        v_at = v_ptr + v_rows[:, None] + columns[None, :]
        # Load zeros for missing keys: a probability of zero times garbage may be NaN.
        if MASKED:
            is_there = exists[:, None] & (columns < D)[None, :]
            k = tl.load(k_at, mask=is_there, other=0.0)
            v = tl.load(v_at, mask=is_there, other=0.0)
        elif D_PAD != D:
            k = tl.load(k_at, mask=(columns < D)[None, :], other=0.0)
            v = tl.load(v_at, mask=(columns < D)[None, :], other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        if scales is not None:
            scales_at = scales + blocks * scale_block + keys % BLOCK_SIZE * scale_token
            key_scales = tl.load(scales_at, mask=exists, other=0.0)
            value_scales = tl.load(scales_at + scale_part, mask=exists, other=0.0)
            k, v = widen_values(k, q.dtype), widen_values(v, weighed_type(q.dtype))
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if scales is not None:
            scores *= key_scales[None, :]
        if CAP:
            scores = _tanh(scores * scale) * softcap
            factor = 1.0
        else:
            factor = scale
        if slopes is not None:
            scores = scores * factor - slopes[:, None] * (positions[:, None] - keys[None, :]).to(tl.float32)
            factor = 1.0
        if MASKED:
            visible = exists[None, :] & (keys[None, :] <= positions[:, None])
            if WINDOW:
                visible &= keys[None, :] >= first_visible(positions, window)[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
        p = tl.exp2(scores * factor - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(p, 1)
        if scales is not None:
            p *= value_scales[None, :]
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["heads_at_once"])
def _prefill_kernel(
    q_ptr,  # [T, H, D]
    k_ptr,  # [T, Hkv, D], or the cache's keys [blocks, Hkv, BLOCK_SIZE, D]
    v_ptr,
    tables_ptr,  # [S, M]
    slots_ptr,  # [R]
    starts_ptr,  # [R + 1]
    lens_ptr,  # [R]
    counts_ptr,
    sinks_ptr,  # [H]
    slopes_ptr,  # [H], or None
    out_ptr,  # [T, H, D]
    q_stride,
    k_stride,  # of a token, or of a block
    v_stride,
    k_head_stride,
    v_head_stride,
    table_stride,
    out_stride,
    scale,  # of scores to base-2 logits, or to the cap's argument if there is a cap
    softcap,  # in base-2 logits
    window,
    heads_at_once,  # see prefill_tiles
    scales,  # of a quantised cache [2, blocks, Hkv, BLOCK_SIZE], or None
    scale_part,
    scale_block,
    scale_head,
    scale_token,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,  # heads of a group in one tile: 1, or GROUP's next power of two
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    tile_size: tl.constexpr = BLOCK_M // PACK
    group_programs: tl.constexpr = GROUP if PACK == 1 else 1
    if PDL:
        tl.extra.cuda.gdc_wait()
    num_decode, skipped, num_rows, num_tiles = count_tiles(starts_ptr, counts_ptr, tile_size)
    index = tl.program_id(0)
    if index >= num_tiles * group_programs * NUM_KV_HEADS:
        return
    tile, kv_head, member = split_index(index, num_tiles, heads_at_once, group_programs)
    row, start, length, first_query = find_tile(tile, starts_ptr, num_decode, skipped, num_rows, tile_size)
    if first_query >= length:
        return

    members = tl.arange(0, BLOCK_M) % PACK
    if PACK == 1:
        members += member
    heads = kv_head * GROUP + members
    queries = first_query + tl.arange(0, BLOCK_M) // PACK
    columns = tl.arange(0, D_PAD)
    is_real = (queries < length) & (members < GROUP)
    at = (start + queries).to(tl.int64)
    mask = is_real[:, None] & (columns < D)[None, :]
    q = tl.load(q_ptr + (at * q_stride + heads * D)[:, None] + columns[None, :], mask=mask, other=0.0)

    seq_len = tl.load(lens_ptr + row)
    first_position = seq_len - length + first_query
    positions = seq_len - length + queries
    stop = tl.minimum(first_position + tile_size, seq_len)
    if PAGED:
        table_ptr = tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride
        k_ptr += kv_head * k_head_stride
        v_ptr += kv_head * v_head_stride
        if scales is not None:
            scales += kv_head * scale_head
    else:
        table_ptr = tables_ptr
        k_ptr += start.to(tl.int64) * k_stride + kv_head * k_head_stride
        v_ptr += start.to(tl.int64) * v_stride + kv_head * v_head_stride

    acc = tl.zeros((BLOCK_M, D_PAD), tl.float32)
    if SINKS:
        sinks = tl.load(sinks_ptr + heads, mask=members < GROUP, other=0.0).to(tl.float32)
        row_max = sinks * 1.4426950408889634
        row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    else:
        row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        row_sum = tl.zeros((BLOCK_M,), tl.float32)
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads, mask=members < GROUP, other=0.0) * 1.4426950408889634
    # Keys from inner_start to inner_stop are visible to all the tile's queries.
    inner_stop = (first_position + 1) // BLOCK_N * BLOCK_N
    inner_start = 0
    first_key = 0
    if WINDOW:
        first_key = first_visible(first_position, window)
        outer_start = first_key // BLOCK_N * BLOCK_N
        inner_start = tl.cdiv(first_visible(stop - 1, window), BLOCK_N) * BLOCK_N
        inner_start = tl.maximum(inner_start, outer_start)
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, positions, slopes, outer_start, tl.minimum(inner_start, stop), first_key, seq_len,
            k_ptr, v_ptr, table_ptr, k_stride, v_stride, scale, softcap, window, scales, scale_part, scale_block,
            scale_token, D, D_PAD, BLOCK_N, BLOCK_SIZE, PAGED, WINDOW, CAP, PRECISION, True,
        )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, positions, slopes, inner_start, inner_stop, first_key, seq_len,
        k_ptr, v_ptr, table_ptr, k_stride, v_stride, scale, softcap, window, scales, scale_part, scale_block,
        scale_token, D, D_PAD, BLOCK_N, BLOCK_SIZE, PAGED, WINDOW, CAP, PRECISION, False,
    )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, positions, slopes, tl.maximum(inner_start, inner_stop), stop, first_key, seq_len,
        k_ptr, v_ptr, table_ptr, k_stride, v_stride, scale, softcap, window, scales, scale_part, scale_block,
        scale_token, D, D_PAD, BLOCK_N, BLOCK_SIZE, PAGED, WINDOW, CAP, PRECISION, True,
    )  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    acc = acc / tl.where(is_real, row_sum, 1.0)[:, None]
    out_at = out_ptr + (at * out_stride + heads * D)[:, None] + columns[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)


def portable_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens: int,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    pack: int,
    config: TileConfig,
    scales: CacheScales | None = None,
) -> None:
    """Launch the kernel; see ``prefill_attention`` for arguments.

    Args:
        k, v: ``[T, Hkv, D]`` contiguous keys, or the cache's halves ``[blocks, Hkv, block_size, D]``.
        pack: heads of a group in one tile: 1, or the group's size rounded up to a power of two.
        scales: of a quantised cache.
    """
    num_heads, head_dim = q.shape[-2:]
    is_paged = k.dim() == 4
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    num_tiles = num_tokens // (config.block_m // pack) + num_rows
    group_programs = group if pack == 1 else 1
    _prefill_kernel[(num_tiles * num_kv_heads * group_programs,)](
        q, k, v, block_tables, slots, query_starts, seq_lens, counts, sinks, slopes, out,
        q.stride(0), k.stride(0), v.stride(0), k.stride(1), v.stride(1), block_tables.stride(0), out.stride(0),
        scale * LOG2_E if softcap is None else scale / softcap,
        0.0 if softcap is None else softcap * LOG2_E,
        window or 0,
        choose_heads_at_once(num_tiles, num_kv_heads, group_programs, num_multiprocessors(q.device), not is_paged),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, PACK=pack,
        D=head_dim, D_PAD=max(triton.next_power_of_2(head_dim), MIN_DOT_SIZE),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_SIZE=k.shape[2] if is_paged else 1, PAGED=is_paged,
        WINDOW=window is not None, CAP=softcap is not None, SINKS=sinks is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **scale_arguments(scales, k.dtype),
        num_warps=config.num_warps, num_stages=config.num_stages, **dependent_launch(q.device),
    )  # fmt: skip
