"""Decode attention: one new token per row, or a few, over its paged keys and values.

A row is split into chunks by its length, which is read on the device (Flash-Decoding). The last program of a row and
head to finish merges the chunks in order, so the result does not depend on which program that is. A row's bits depend
on its length, the tile and the cut; see :func:`choose_cut`. The kernel itself is in :mod:`decode_chunks`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton

from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.cache_scales import scale_arguments
from octavo.kernels.triton.decode_chunks import paged_decode_kernel
from octavo.kernels.triton.decode_merge import COPIES, MERGED_AT_ONCE
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch

MAX_CHUNKS = 64
"""Maximum number of chunks of a row; more do not pay."""

MIN_CHUNK = 512
"""Minimum number of tokens of a chunk: below it, the cost of the merge exceeds the gain of another program."""

MIN_CHUNK_OF_FEW = 64
"""The same if rows are so few that three of four multiprocessors would be idle, and a cached head has at least 256
bytes. With smaller heads, twice as many, or two tiles."""

MIN_CHUNK_OF_MANY = 1024
"""The same if rows fill the device, and only a row much longer than the others needs more than one program."""

MAX_LONG_CHUNKS = 3
"""Maximum number of chunks of such a long row."""

LONG_ROWS = 8
"""Then one row in this many may be split, the longest ones; not more, since idle programs have a cost, too."""

FEW_WAVES = 8
"""Programs per multiprocessor up to which long rows are split. Beyond it, running the longest rows first is enough to
keep the device busy to the end."""

MANY_PROGRAMS = 320
"""Rows times key/value heads beyond which small programs are faster, since they balance better."""

FEW_PROGRAMS = 64
"""The same up to which each chunk has a multiprocessor of its own, even with two chunks per row."""

MERGED_VALUES = 16
"""Values of a chunk per thread up to which ``MERGED_AT_ONCE`` chunks fit into registers; two always do."""

MAX_WALKER_QUERIES = 16
"""Queries of a program up to which each warp has its own accumulators ("walkers"): these must fit into registers."""


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Partial results of chunks, for the program that merges them; launches on one stream share it.

    Attributes:
        splits: chunks per row that fit if all ``max_rows`` rows decode.
        logsums: ``[places, H, copies]`` float32, log2 of each head's sum of weights in a chunk.
        partials: ``[places, H, D]`` float32, weighted means of values.
        arrivals: ``[max rows, H]`` int32, programs that have finished a row and key/value head; zero between launches.
    """

    splits: int
    logsums: torch.Tensor
    partials: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_heads: int, head_dim: int, splits: int, device: torch.device
    ) -> "DecodeWorkspace":
        """A workspace for ``max_rows · splits`` chunks: fewer rows may have more chunks each.

        Args:
            num_heads: query heads, times the maximum number of tokens of a row.
        """
        places = max_rows * splits
        return cls(
            splits,
            torch.empty(places, num_heads, COPIES.value, dtype=torch.float32, device=device),
            torch.empty(places, num_heads, head_dim, dtype=torch.float32, device=device),
            torch.zeros(max_rows, num_heads, dtype=torch.int32, device=device),
        )


class DecodeTile(NamedTuple):
    """A program's loop over its chunk: tokens per iteration, warps, pipeline depth."""

    num_tokens: int
    num_warps: int
    num_stages: int


class Cut(NamedTuple):
    """How rows are split into chunks.

    Attributes:
        max_chunks, min_tokens: maximum chunks per row, minimum tokens per chunk; a row's bits depend on these.
        num_programs: programs that share a row's chunks; None is one program per chunk.
        num_long: if not 0, only the first ``num_long`` rows are split, into chunks of at least the rows' mean length;
            bits then depend on the other rows.
    """

    max_chunks: int
    min_tokens: int
    num_programs: int | None = None
    num_long: int = 0


def choose_tile(
    head_bytes: int, dtype: torch.dtype, num_programs: int, num_queries: int = 1, *, is_quantized: bool = False
) -> DecodeTile:
    """The tile for a head size and compute type: large for few programs, small if many share a multiprocessor.

    Args:
        head_bytes: of a token's key or value of one head in the cache.
        num_programs: rows times key/value heads; pass a constant if a row's bits must not depend on the others.
        num_queries: queries of a program.
        is_quantized: whether the cache has scales.
    """
    if dtype == torch.float32:
        return DecodeTile(16, 8, 3)
    if num_queries > MAX_WALKER_QUERIES:
        return DecodeTile(64, 8, 3)
    if is_quantized:
        # Instructions keep a program as busy as loads: two of them at once, of four warps each, hide both.
        return DecodeTile(64, 4, 3)
    # The fewer bytes a token has, the more tokens in flight it takes to use the bandwidth.
    is_small = head_bytes <= 128
    if num_programs > MANY_PROGRAMS:
        return DecodeTile(32, 2, 7 if is_small else 4)
    # Eight warps leave no room for the next launch's program, which delays it. Chunks of 512 tokens or more
    # (see choose_cut) make up for this, and so do several queries, since each warp then prepares a head of its own.
    if is_small and num_programs <= FEW_PROGRAMS and (num_programs > FEW_PROGRAMS // 2 or num_queries >= 4):
        return DecodeTile(128, 8, 3)
    return DecodeTile(64, 4, 3)


def choose_cut(
    num_rows: int,
    num_kv_heads: int,
    head_bytes: int,
    max_len: int,
    num_multiprocessors: int,
    tile: DecodeTile,
    max_places: int | None = None,
    *,
    is_quantized: bool = False,
) -> Cut:
    """A cut of rows of at most ``max_len`` tokens that fills the device for any number of rows.

    Args:
        head_bytes: of a token's key or value of one head in the cache.
        max_places: number of chunks, over all rows, that the workspace has room for.
        is_quantized: whether the cache has scales.
    """
    num_programs = num_rows * num_kv_heads
    # No more programs than run at once: further ones would queue, even those that have nothing to do.
    num_at_once = 2 * num_multiprocessors if is_quantized else num_multiprocessors
    max_chunks = min(num_at_once // num_programs, MAX_CHUNKS)
    min_tokens, num_long = MIN_CHUNK, 0
    if max_chunks >= 4:
        min_tokens = MIN_CHUNK_OF_FEW if head_bytes >= 256 else 2 * max(MIN_CHUNK_OF_FEW, tile.num_tokens)
    elif num_programs <= 2 * num_multiprocessors:
        min_tokens = MIN_CHUNK if max_chunks > 1 else MIN_CHUNK_OF_MANY
        max_chunks = max(max_chunks, 2)
    elif num_programs <= FEW_WAVES * num_multiprocessors:
        max_chunks, num_long = MAX_LONG_CHUNKS, triton.cdiv(num_rows, LONG_ROWS)
    max_chunks = min(max_chunks, triton.cdiv(max_len, min_tokens))
    if max_places is not None:
        max_chunks = min(max_chunks, max_places // (num_long or num_rows))
    return Cut(max(max_chunks, 1), min_tokens, num_long=num_long)


def decode_attention(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    query_starts: torch.Tensor | None = None,
    *,
    num_rows: int,
    length: int = 1,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    cut: Cut,
    reads_early: bool = True,
    tile: DecodeTile | None = None,
    scales: CacheScales | None = None,
) -> None:
    """Norm and rotate a row's query and key heads, store its keys and values at its last positions, and attend.

    Equal to :func:`octavo.kernels.basic.qk_rope_store` followed by causal attention of each row's new tokens over the
    tokens in the cache, their own included.

    Args:
        qkv: ``[≥ T, (H + 2·Hkv)·D]``, rows contiguous: each token's queries, keys and values. It is only read.
        cos, sin: ``[≥ T, 1, Rot]``; see :func:`octavo.kernels.basic.apply_rope`.
        q_norm, k_norm: ``[D]``, weights of the norms of each query and each key head; None for no norm.
        kv_cache: ``[2, blocks, Hkv, block_size, D]``, a block of a head contiguous.
        block_tables: ``[S, M]`` int32, by slot; entries outside a row's length and window are not used.
        slots: ``[R]`` integers, each row's slot.
        seq_lens: ``[R]`` int32, tokens of each row, the new ones included.
        counts: int32 on the device: the first ``counts[1]`` rows decode, others are skipped. ``counts[3]`` is their
            mean length, read if ``cut.num_long`` is set; the longest rows should come first then.
        out: ``[≥ T, H, D]``, the last two dimensions contiguous.
        query_starts: ``[R + 1]`` int32, each row's first token; not read if ``length`` is 1.
        num_rows: ``R`` of the launch.
        length: maximum number of new tokens of a row.
        window: see :class:`octavo.kernels.attention.AttentionInputs`.
        softcap: scores become ``c · tanh(scores / c)``; None for no cap.
        sinks: ``[H]``, attention sinks: an extra logit per head in the softmax, without a value.
        slopes: ``[H]``, ALiBi: a score falls by its head's slope for each token from key to query.
        cut: see :func:`choose_cut`.
        reads_early: whether to read keys and values while the preceding launch still runs; only valid if that launch
            does not write them.
        scales: of a quantised cache.
    """
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    num_heads = out.shape[1]
    assert (cut.num_long or num_rows) * cut.max_chunks <= len(workspace.logsums)
    assert num_rows <= len(workspace.arrivals) and workspace.logsums.shape[1] >= num_heads * length
    assert kv_cache.stride()[-2:] == (head_dim, 1)
    group, block_d = num_heads // num_kv_heads, max(triton.next_power_of_2(head_dim), MIN_DOT_SIZE)
    if scales is not None:
        assert head_dim % 2 == 0
        block_d = max(block_d, 2 * MIN_DOT_SIZE)
    num_queries = group * length
    head_bytes = head_dim * kv_cache.element_size()
    is_quantized = scales is not None
    tile = tile or choose_tile(head_bytes, qkv.dtype, num_rows * num_kv_heads, num_queries, is_quantized=is_quantized)
    has_walkers = qkv.dtype != torch.float32 and num_queries <= MAX_WALKER_QUERIES
    num_walkers = min(tile.num_warps, tile.num_tokens // 16) if has_walkers else 1
    num_values = triton.next_power_of_2(num_queries) * block_d // (32 * tile.num_warps)
    if cut.num_long:
        num_programs = 1, num_rows + cut.num_long * (cut.max_chunks - 1)
    else:
        num_programs = cut.num_programs or cut.max_chunks, num_rows
    paged_decode_kernel[num_kv_heads, *num_programs](
        qkv,
        qkv.stride(0),
        cos,
        cos.stride(0),
        sin,
        sin.stride(0),
        q_norm,
        k_norm,
        eps,
        kv_cache,
        None if scales is None else kv_cache.view(torch.int16),
        part_stride=kv_cache.stride(0),
        block_stride=kv_cache.stride(1),
        head_stride=kv_cache.stride(2),
        block_tables=block_tables,
        table_stride=block_tables.stride(0),
        slots=slots,
        seq_lens=seq_lens,
        query_starts=query_starts,
        counts=counts,
        out=out,
        out_stride=out.stride(0),
        logsums=workspace.logsums,
        partials=workspace.partials,
        arrivals=workspace.arrivals,
        max_chunks=cut.max_chunks,
        min_tiles=max(cut.min_tokens // tile.num_tokens, 1),
        num_long=cut.num_long,
        reads_early=int(reads_early),
        scale=scale,
        window=0 if window is None else window,
        softcap=0.0 if softcap is None else softcap,
        sinks=sinks,
        slopes=slopes,
        LOOPS=cut.num_programs is not None,
        ROTARY_DIM=cos.shape[-1],
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        GROUP=group,
        BLOCK_SIZE=block_size,
        BLOCK_C=MERGED_AT_ONCE.value if num_queries <= MAX_WALKER_QUERIES and num_values <= MERGED_VALUES else 2,
        BLOCK_D=block_d,
        TOKENS=tile.num_tokens,
        WALKERS=num_walkers,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        LENGTH=length,
        **scale_arguments(scales, kv_cache.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **dependent_launch(qkv.device),
    )
