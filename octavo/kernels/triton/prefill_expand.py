"""Keys and values of a quantised cache in the compute type, so that :mod:`prefill_hopper` can read them.

One launch copies what the queries of a step's chunks see, their own keys included, to a buffer in which each row is
contiguous. It takes 5 bytes of traffic for each value, once for all queries, where attention reads and multiplies it
for every tile of them. All layers share the buffer; a step whose keys do not fit goes through it by groups of heads.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import EXPANDED_BYTES
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors
from octavo.kernels.triton.prefill_hopper import HopperConfig, hopper_prefill
from octavo.kernels.triton.widening import widen_values
from octavo.kernels.triton.window import first_visible

TILE = 16
"""Tokens that a program takes at a time; rows begin at multiples of it."""

_PROGRAMS = 4
"""Programs per multiprocessor and head."""

_BLOCK_N = 128
"""Within a row, the first token is a multiple of this and so of the keys that attention loads at a time."""


@dataclass(frozen=True, slots=True)
class ExpandedKeys:
    """Where keys and values of a step's rows go, in the compute type.

    Attributes:
        buffer: bytes.
        starts: ``[R]`` int32, where position 0 of each row would lie, in tokens. It is negative if a window begins
            after it.
    """

    buffer: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def allocate(cls, max_rows: int, device: torch.device) -> "ExpandedKeys":
        """Room for steps of so many rows."""
        return cls(
            torch.empty(EXPANDED_BYTES, dtype=torch.uint8, device=device),
            torch.empty(max_rows, dtype=torch.int32, device=device),
        )

    def num_heads(self, num_tokens: int, num_kv_heads: int, head_bytes: int) -> int:
        """Number of heads whose keys and values fit at a time, of about equal groups of heads; 0 if not even one's do.

        Args:
            num_tokens: see :func:`max_expanded_tokens`.
            head_bytes: of a key.
        """
        num_fitting = len(self.buffer) // (2 * num_tokens * head_bytes)
        return triton.cdiv(num_kv_heads, triton.cdiv(num_kv_heads, num_fitting)) if num_fitting else 0

    def halves(self, num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Keys and values ``[2, num_tokens, num_heads, head_dim]``."""
        size = 2 * num_tokens * num_heads * head_dim
        return self.buffer.view(dtype)[:size].view(2, num_tokens, num_heads, head_dim)


def max_expanded_tokens(num_tokens: int, num_cached_tokens: int, num_rows: int, window: int | None) -> int:
    """Upper bound of the tokens that a step's chunks see, each row's padding included."""
    num_keys = num_cached_tokens + num_tokens
    if window is not None:
        num_keys = min(num_keys, num_tokens + num_rows * (window + _BLOCK_N))
    return triton.cdiv(num_keys + num_rows * (TILE - 1), TILE) * TILE


def expanded_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    scales: CacheScales,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    expanded: ExpandedKeys,
    *,
    num_keys: int,
    num_heads: int,
    num_tokens: int,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    config: HopperConfig,
) -> None:
    """Attention of chunks over a quantised cache, by :func:`hopper_prefill`; see ``prefill_attention`` for arguments.

    Args:
        cache: with the step's tokens stored.
        expanded: with room for ``num_heads`` key/value heads of ``num_keys`` tokens, as many as
            :func:`max_expanded_tokens` says.
    """
    num_kv_heads, head_dim = cache.shape[2], cache.shape[4]
    group = q.shape[1] // num_kv_heads
    for first in range(0, num_kv_heads, num_heads):
        last = min(first + num_heads, num_kv_heads)
        queries = slice(first * group, last * group)
        halves = expanded.halves(num_keys, last - first, head_dim, q.dtype)
        expand_keys(
            cache, scales, block_tables, slots, query_starts, seq_lens, counts, halves, expanded.starts,
            first_head=first, window=window,
        )  # fmt: skip
        hopper_prefill(
            q[:, queries], halves[0], halves[1], None, block_tables, slots, query_starts, seq_lens, counts,
            out[:, queries], num_tokens=num_tokens, num_rows=num_rows, scale=scale, window=window, softcap=softcap,
            sinks=None if sinks is None else sinks[queries], config=config, key_starts=expanded.starts,
        )  # fmt: skip


def expand_keys(
    cache: torch.Tensor,
    scales: CacheScales,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    out_starts: torch.Tensor,
    *,
    first_head: int,
    window: int | None,
) -> None:
    """Round what a quantised cache stands for to the compute type; see ``prefill_attention`` for other arguments.

    Values are those that :func:`octavo.kernels.triton.rotary.qk_rope_store` leaves in place.

    Args:
        cache: ``[2, blocks, Hkv, block_size, D]`` of 8 bits; D is a power of two.
        out: ``[2, N, H, D]`` of the compute type, for keys and values of the heads from ``first_head`` on; ``N`` as
            :func:`max_expanded_tokens` says.
        out_starts: ``[≥ R]`` int32, written: where position 0 of each row would lie.
        window: number of tokens that a query attends to; None for all.
    """
    _, num_tokens, num_heads, head_dim = out.shape
    values, given = cache[:, :, first_head:], scales.values[:, :, first_head:]
    part, block, head, token, _ = values.stride()
    num_programs = min(num_tokens // TILE, _PROGRAMS * num_multiprocessors(out.device))
    _expand_kernel[(num_programs, num_heads)](
        values, given, block_tables, slots, query_starts, seq_lens, counts, out, out_starts,
        part, block, head, token, *given.stride(), block_tables.stride(0), out.stride(0), out.stride(1), window or 0,
        D=head_dim, BLOCK_SIZE=cache.shape[3], TILE=TILE, BLOCK_N=_BLOCK_N, WINDOW=window is not None,
        num_warps=max(TILE * head_dim // 1024, 1), **dependent_launch(out.device),
    )  # fmt: skip


@triton.jit
def _find_tile(
    tile, starts_ptr, lens_ptr, counts_ptr, out_starts_ptr, window,
    TILE: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr = 128,
):  # fmt: skip
    """The row of a tile, the row's first tile, the number of all tiles. The first program writes where rows begin."""
    num_rows = tl.load(counts_ptr)
    row = tl.load(counts_ptr + 1)  # rows before it decode
    row_tile, end = 0, 0
    for first in range(row, num_rows, CHUNK):
        rows = first + tl.arange(0, CHUNK)
        is_row = rows < num_rows
        lengths = tl.load(lens_ptr + rows, is_row, other=0)
        first_keys = tl.zeros_like(lengths)
        if WINDOW:
            starts = tl.load(starts_ptr + rows, is_row, other=0)
            positions = lengths - (tl.load(starts_ptr + rows + 1, is_row, other=0) - starts)
            first_keys = first_visible(positions, window) // BLOCK_N * BLOCK_N
        num_tiles = tl.cdiv(lengths - first_keys, TILE)
        ends = end + tl.cumsum(num_tiles, 0)
        is_before = is_row & (ends <= tile)
        row += tl.sum(is_before.to(tl.int32))
        row_tile = tl.maximum(row_tile, tl.max(tl.where(is_before, ends, 0)))
        end += tl.sum(num_tiles)
        if (tile == 0) & (tl.program_id(1) == 0):
            tl.store(out_starts_ptr + rows, (ends - num_tiles) * TILE - first_keys, is_row)
    return row, row_tile, end


@triton.jit
def _expand_kernel(
    cache_ptr,  # [2, blocks, H, BLOCK_SIZE, D]
    scales_ptr,  # [2, blocks, H, BLOCK_SIZE]
    tables_ptr,  # [S, M]
    slots_ptr,  # [R]
    starts_ptr,  # [R + 1]
    lens_ptr,  # [R]
    counts_ptr,
    out_ptr,  # [2, N, H, D]
    out_starts_ptr,  # [R]
    cache_part,
    cache_block,
    cache_head,
    cache_token,
    scale_part,
    scale_block,
    scale_head,
    scale_token,
    table_stride,
    out_part,
    out_token,
    window,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """One head of tiles of ``TILE`` tokens of a row; grid (programs that share the tiles, heads)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.arange(0, D)
    head = tl.program_id(1)
    cache_ptr += head.to(tl.int64) * cache_head
    scales_ptr += head.to(tl.int64) * scale_head
    out_ptr += head * D
    tile = tl.program_id(0)
    end = tile + 1
    while tile < end:
        row, row_tile, end = _find_tile(
            tile, starts_ptr, lens_ptr, counts_ptr, out_starts_ptr, window, TILE, BLOCK_N, WINDOW
        )
        if tile < end:
            seq_len = tl.load(lens_ptr + row)
            first_key = 0
            if WINDOW:
                query_len = tl.load(starts_ptr + row + 1) - tl.load(starts_ptr + row)
                first_key = first_visible(seq_len - query_len, window)
            keys = first_key // BLOCK_N * BLOCK_N + (tile - row_tile) * TILE + tl.arange(0, TILE)
            # Attention gives others no weight, but zero times garbage may be NaN.
            is_seen = (keys >= first_key) & (keys < seq_len)
            table_ptr = tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride
            blocks = tl.load(table_ptr + keys // BLOCK_SIZE, is_seen, other=0).to(tl.int64)
            cache_at = cache_ptr + blocks * cache_block + keys % BLOCK_SIZE * cache_token
            scales_at = scales_ptr + blocks * scale_block + keys % BLOCK_SIZE * scale_token
            out_at = out_ptr + (tile * TILE + tl.arange(0, TILE)) * out_token
            for part in tl.static_range(2):
                scales = tl.load(scales_at + part * scale_part, is_seen, other=0.0)
                values_at = (cache_at + part * cache_part)[:, None] + columns[None, :]
                values = tl.load(values_at, is_seen[:, None], other=0.0)
                wide = widen_values(values, out_ptr.dtype.element_ty).to(tl.float32) * scales[:, None]
                wide_at = (out_at + part * out_part)[:, None] + columns[None, :]
                tl.store(wide_at, wide.to(out_ptr.dtype.element_ty))
        tile += tl.num_programs(0)
