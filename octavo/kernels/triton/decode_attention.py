"""Attention of one new token a row over its paged keys and values.

A program takes all query heads of one key/value head of one row, and walks one chunk of the row's context with the
online softmax of FlashAttention (arXiv:2205.14135). How many chunks a row has follows from its length, read on the
device (Flash-Decoding); the last program of a row and head to finish merges the chunks in their order, so that the
result does not depend on which one that is.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.decode_chunks import attend_row
from octavo.kernels.triton.launch import dependent_launch

MAX_CHUNKS = 64
"""Most chunks that a row is worth cutting into."""

PROGRAMS_PER_MULTIPROCESSOR = 4
"""Programs that keep a multiprocessor's memory pipes busy."""

MIN_CHUNK = 128
"""Fewest tokens worth a chunk of their own."""


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Where programs leave partial results for the one that merges them; launches on one stream share it.

    Attributes:
        splits: chunks of a row that there is place for at the most rows; a deterministic launch cuts it into as many.
        peaks, totals: ``[places, H]`` float32: each head's largest score (base 2) and sum of weights in a chunk.
        partials: ``[places, H, D]`` float32: weighted sums of values.
        arrivals: ``[max rows, H]`` int32, programs that have finished a row and key/value head; zero between launches.
    """

    splits: int
    peaks: torch.Tensor
    totals: torch.Tensor
    partials: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_heads: int, head_dim: int, splits: int, device: torch.device
    ) -> "DecodeWorkspace":
        """A workspace for ``max_rows · splits`` chunks: fewer rows may have more chunks each."""
        places = max_rows * splits
        return cls(
            splits,
            torch.empty(places, num_heads, dtype=torch.float32, device=device),
            torch.empty(places, num_heads, dtype=torch.float32, device=device),
            torch.empty(places, num_heads, head_dim, dtype=torch.float32, device=device),
            torch.zeros(max_rows, num_heads, dtype=torch.int32, device=device),
        )


class Tile(NamedTuple):
    """How a program walks its chunk: tokens at a time, its warps, the pipeline's depth, the dot's orientation.

    ``tokens_first`` makes tokens the rows of the tile of scores, and heads its columns.
    """

    num_tokens: int
    num_warps: int
    num_stages: int
    tokens_first: bool = False


def choose_tile(head_dim: int, dtype: torch.dtype) -> Tile:
    """A tile for a head size and cache type; not for a batch, whose size must not change a bit of a row."""
    if dtype == torch.float32:
        return Tile(16, 4, 3)
    return Tile(64 if head_dim <= 128 else 32, 4, 3)


def choose_splits(
    num_rows: int, num_kv_heads: int, max_len: int, num_multiprocessors: int, max_places: int | None = None
) -> int:
    """Programs to share a row and key/value head of at most ``max_len`` tokens, so that a launch fills the device.

    Args:
        max_places: chunks that the workspace has place for, over all rows.
    """
    wanted = PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors // (num_rows * num_kv_heads)
    if max_places is not None:
        wanted = min(wanted, max_places // num_rows)
    return max(min(wanted, triton.cdiv(max_len, MIN_CHUNK), MAX_CHUNKS), 1)


def decode_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    num_splits: int,
    deterministic: bool = False,
    tile: Tile | None = None,
) -> None:
    """Attention of one query a row over the tokens in the cache, the query's own included.

    Args:
        q: ``[≥ R, H, D]``, the last two dimensions contiguous.
        kv_cache: ``[2, blocks, Hkv, block_size, D]``, a block of a head contiguous.
        block_tables: ``[S, M]`` int32, by slot; entries outside a row's length and window are not used.
        slots: ``[R]`` integers, each row's slot.
        seq_lens: ``[R]`` int32, tokens of each row, the new one included.
        counts: int32 on the device; ``counts[1]`` is how many rows, the first ones, decode. Others are not touched.
        out: ``[≥ R, H, D]``, like ``q``.
        num_rows: ``R`` of the launch.
        window: tokens that a query sees, itself included; None is all.
        softcap: scores become ``c · tanh(scores / c)``; None for no cap.
        sinks: ``[H]``, a logit of each head that takes its share of the softmax and has no value.
        num_splits: programs a row and key/value head; see :func:`choose_splits`.
        deterministic: cut a row by its length alone, into up to ``workspace.splits`` chunks, however many programs
            share them; otherwise into up to ``num_splits``.
    """
    tile = tile or choose_tile(q.shape[-1], kv_cache.dtype)
    max_chunks = workspace.splits if deterministic else num_splits
    _decode_kernel[kv_cache.shape[2], num_splits, num_rows](
        q,
        q.stride(0),
        **row_arguments(kv_cache, block_tables, slots, seq_lens, counts, out, workspace, num_rows, max_chunks),
        **score_arguments(scale, window, softcap, sinks),
        **shape_arguments(kv_cache, q.shape[1], tile),
        **dependent_launch(q.device),
    )


def row_arguments(
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    num_rows: int,
    max_chunks: int,
) -> dict[str, object]:
    """Where a decode kernel finds a row's tokens and leaves its output."""
    assert num_rows * max_chunks <= len(workspace.peaks)
    assert num_rows <= len(workspace.arrivals)
    assert kv_cache.stride()[-2:] == (kv_cache.shape[-1], 1)
    return {
        "kv_cache": kv_cache,
        "part_stride": kv_cache.stride(0),
        "block_stride": kv_cache.stride(1),
        "head_stride": kv_cache.stride(2),
        "block_tables": block_tables,
        "table_stride": block_tables.stride(0),
        "slots": slots,
        "seq_lens": seq_lens,
        "counts": counts,
        "out": out,
        "out_stride": out.stride(0),
        "peaks": workspace.peaks,
        "totals": workspace.totals,
        "partials": workspace.partials,
        "arrivals": workspace.arrivals,
        "max_chunks": max_chunks,
    }


def score_arguments(
    scale: float, window: int | None, softcap: float | None, sinks: torch.Tensor | None
) -> dict[str, object]:
    """How a decode kernel makes weights of products."""
    return {
        "scale": scale,
        "window": 0 if window is None else window,
        "softcap": 0.0 if softcap is None else softcap,
        "sinks": sinks,
        "HAS_WINDOW": window is not None,
        "HAS_SOFTCAP": softcap is not None,
    }


def shape_arguments(kv_cache: torch.Tensor, num_heads: int, tile: Tile) -> dict[str, object]:
    """What a decode kernel is compiled for."""
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    group = num_heads // num_kv_heads
    block_d = triton.next_power_of_2(head_dim)
    merged = triton.next_power_of_2(group) * block_d
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        # What a chunk left is read by all threads at once, 32 values each.
        "BLOCK_C": min(max(1024 * tile.num_warps // merged, 1), 16),
        "BLOCK_G": max(triton.next_power_of_2(group), 16),
        "BLOCK_D": block_d,
        "BLOCK_N": tile.num_tokens,
        "MIN_TILES": max(MIN_CHUNK // tile.num_tokens, 1),
        "TOKENS": 0 if tile.tokens_first else 1,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


@triton.jit(do_not_specialize=["table_stride", "max_chunks", "window"])
def _decode_kernel(
    q: tl.tensor,
    q_stride: tl.tensor,
    kv_cache: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    block_tables: tl.tensor,
    table_stride: tl.tensor,
    slots: tl.tensor,
    seq_lens: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    max_chunks: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    sinks: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    head, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    first_head = head * GROUP
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    num_decoding = tl.load(counts + 1)
    slot = tl.load(slots + row).to(tl.int64)
    seq_len = tl.load(seq_lens + row)
    heads, dims = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_D)[None, :]
    pointers = q + row * q_stride + (first_head + heads) * HEAD_DIM + dims
    queries = tl.load(pointers, (heads < GROUP) & (dims < HEAD_DIM), other=0.0)
    if row >= num_decoding:
        return
    place = row * max_chunks * NUM_HEADS + first_head
    attend_row(
        queries,
        None,
        None,
        kv_cache + head * head_stride,
        part_stride,
        block_stride,
        block_tables + slot * table_stride,
        tl.maximum(seq_len - window, 0) if HAS_WINDOW else 0,
        seq_len,
        scale,
        softcap,
        sinks + first_head if sinks is not None else None,
        out + row * out_stride + first_head * HEAD_DIM,
        peaks + place,
        totals + place,
        partials + place * HEAD_DIM,
        arrivals + row * NUM_HEADS + head,
        max_chunks,
        NUM_HEADS,
        HEAD_DIM,
        GROUP,
        BLOCK_SIZE,
        BLOCK_C,
        BLOCK_G,
        BLOCK_D,
        BLOCK_N,
        MIN_TILES,
        TOKENS,
        HAS_SOFTCAP,
    )
