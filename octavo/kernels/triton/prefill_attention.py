"""Prefill attention: many queries per row over cached or freshly computed keys; chooses between two kernels.

:mod:`prefill_hopper` serves long chunks on Hopper, :mod:`prefill_portable` everything else. The one for Hopper reads no
quantised cache, but what that holds in the compute type: in the rows of fresh chunks, which the launch before rounds
(:func:`rounds_keys`), otherwise in a buffer (:mod:`prefill_expand`).
"""

from typing import Any

import torch
import triton

from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.launch import num_multiprocessors
from octavo.kernels.triton.prefill_expand import ExpandedKeys, expanded_prefill, max_expanded_tokens
from octavo.kernels.triton.prefill_hopper import (
    can_hopper_prefill,
    can_hopper_store,
    hopper_config,
    hopper_prefill,
)
from octavo.kernels.triton.prefill_portable import TileConfig, portable_prefill


def stores_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    num_tokens: int,
    num_rows: int,
    max_query_len: int,
    is_fresh: bool,
    has_decodes: bool,
    window: int | None,
    slopes: torch.Tensor | None,
    deterministic: bool,
    scales: CacheScales | None,
) -> bool:
    """Whether :func:`prefill_attention` should store the chunks' keys and values itself, since it loads them anyway.

    The launch before it then moves less. But a stored block stays longer in its stage of the pipeline, which delays
    short rows, and small heads of several queries each, of whose launch keys and values are a small part. And decoding
    rows attend before chunks do, to blocks that a chunk of their own step may fill: another completion of its prompt.
    """
    is_long = num_tokens >= _STORED_LENGTH * num_rows
    is_large = q.shape[2] > 64 or q.shape[1] == k.shape[1]
    return (
        is_fresh
        and not has_decodes
        and window is None
        and is_long
        and is_large
        and scales is None
        and can_hopper_store(q)
        and _takes_hopper(q, k, kv_cache, max_query_len, is_fresh, window, slopes, deterministic, scales)
    )


def rounds_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    max_query_len: int,
    is_fresh: bool,
    window: int | None,
    slopes: torch.Tensor | None,
    deterministic: bool,
    scales: CacheScales | None,
    **_others: object,
) -> bool:
    """Whether the keys and values of fresh chunks are to be replaced, where they are, by what a quantised cache holds.

    :func:`prefill_attention` reads them there, and what a token sees must not depend on how its prompt was cut.
    """
    is_quantized = scales is not None
    return (
        is_quantized
        and is_fresh
        and _takes_hopper(q, k, None, max_query_len, is_fresh, window, slopes, deterministic, scales)
    )


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens: int,
    num_rows: int,
    max_query_len: int,
    is_fresh: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    deterministic: bool = False,
    scales: CacheScales | None = None,
    slot_mapping: torch.Tensor | None = None,
    num_cached_tokens: int | None = None,
    expanded: ExpandedKeys | None = None,
) -> None:
    """Causal attention of every row's chunk, the last ``query_len`` tokens of its sequence; decode rows are skipped.

    Args:
        q: ``[≥ T, H, D]``, the last two dimensions contiguous.
        k, v: ``[≥ T, Hkv, D]``, the last two dimensions contiguous: the step's own keys and values; see
            :func:`rounds_keys`.
        kv_cache: ``[2, blocks, Hkv, block_size, D]``, with the step's tokens already stored, unless ``slot_mapping`` is
            given.
        block_tables: ``[S, M]`` int32, rows by slot; only entries of visible tokens are read.
        slots: ``[R]`` integers, each row's slot.
        query_starts: ``[R + 1]`` int32, each row's first token among the step's.
        seq_lens: ``[R]`` int32, each row's tokens including its chunk.
        counts: ``[≥ 2]`` int32: number of rows, and of those that decode (which come first).
        out: ``[≥ T, H, D]``, the last two dimensions contiguous; only tokens of chunks are written.
        num_tokens, num_rows, max_query_len: upper bounds known to the host.
        is_fresh: every chunk starts at position 0, so that the cache is not read.
        window: see :class:`octavo.kernels.attention.AttentionInputs`; only the portable kernel has chunks.
        softcap: scores become ``c · tanh(scores / c)``.
        sinks: ``[H]``, attention sinks: a logit added to each softmax's denominator (arXiv:2309.17453).
        slopes: ``[H]``, ALiBi: a score falls by its head's slope for each token from key to query; only the portable
            kernel has them.
        deterministic: use the same kernel and tiles for every mix of chunks, so that a row's bits do not depend on it.
            Over a quantised cache it is the portable one, since the other may need more room than there is.
        scales: of a quantised cache.
        slot_mapping: ``[≥ T]`` int64, where each token goes in the cache: keys and values of chunks are stored there.
            Slots behind a row's last token in its block may get any value. See :func:`stores_keys`; None for no store.
        num_cached_tokens: see :class:`octavo.kernels.attention.StepShape`.
        expanded: room for keys and values of a quantised cache in the compute type; None for none.
    """
    num_heads, num_kv_heads, head_dim = q.shape[1], *k.shape[1:]
    options: dict[str, Any] = {
        "num_tokens": num_tokens,
        "num_rows": num_rows,
        "scale": scale,
        "window": window,
        "softcap": softcap,
        "sinks": sinks,
    }
    cache = None if scales is not None or (is_fresh and slot_mapping is None) else kv_cache
    if _takes_hopper(q, k, cache, max_query_len, is_fresh, window, slopes, deterministic, scales):
        if scales is None or is_fresh:
            hopper_prefill(
                q, k, v, cache, block_tables, slots, query_starts, seq_lens, counts, out,
                config=hopper_config(head_dim), slot_mapping=slot_mapping, **options,
            )  # fmt: skip
            return
        if expanded is not None and num_cached_tokens is not None:
            num_keys = max_expanded_tokens(num_tokens, num_cached_tokens, num_rows, window)
            if num_expanded := expanded.num_heads(num_keys, num_kv_heads, head_dim * q.element_size()):
                expanded_prefill(
                    q, kv_cache, scales, block_tables, slots, query_starts, seq_lens, counts, out, expanded,
                    num_keys=num_keys, num_heads=num_expanded, config=hopper_config(head_dim), **options,
                )  # fmt: skip
                return
    assert slot_mapping is None
    group = triton.next_power_of_2(num_heads // num_kv_heads)
    is_short = max_query_len <= _SHORT_CHUNK and not deterministic
    pack = group if 1 < group <= 16 and 2 * max_query_len <= _SMALL_TILE and is_short else 1
    num_programs = (num_tokens // 128 + num_rows) * num_heads
    is_small = is_short or deterministic or num_programs < num_multiprocessors(q.device)
    keys, values = (k, v) if is_fresh and scales is None else (kv_cache[0], kv_cache[1])
    portable_prefill(
        q, keys, values, block_tables, slots, query_starts, seq_lens, counts, out, slopes=slopes, scales=scales,
        pack=pack, config=portable_config(q.dtype, head_dim, is_small), **options,
    )  # fmt: skip


def _takes_hopper(
    q: torch.Tensor,
    k: torch.Tensor,
    cache: torch.Tensor | None,
    max_query_len: int,
    is_fresh: bool,
    window: int | None,
    slopes: torch.Tensor | None,
    deterministic: bool,
    scales: CacheScales | None,
) -> bool:
    shortest = _SHORT_CHUNK
    if scales is not None:
        shortest = _SHORT_ROUNDED_CHUNK if is_fresh else 0
    is_long = deterministic or max_query_len > shortest
    has_chunks = window is not None and window < 0
    is_supported = not has_chunks and slopes is None and not (deterministic and scales is not None)
    return is_long and is_supported and can_hopper_prefill(q, k, cache)


_SMALL_TILE = 64
"""Query rows per tile if chunks are short or few."""

_STORED_LENGTH = 2048
"""Mean number of tokens per row from which :func:`stores_keys`."""

_SHORT_CHUNK = 128
"""Up to this many queries per row, the portable kernel is faster."""

_SHORT_ROUNDED_CHUNK = 64
"""The same of fresh chunks with a quantised cache. Of others, the one for Hopper is faster for any number."""


def portable_config(dtype: torch.dtype, head_dim: int, is_small: bool) -> TileConfig:
    """The largest tiles that fit registers and shared memory, or small ones if chunks are short or few."""
    if dtype == torch.float32:
        return TileConfig(16 if head_dim > 128 else 32, 32, 8, 2)
    if is_small:
        return TileConfig(_SMALL_TILE, 32 if head_dim > 128 else 64, 4, 3)
    return TileConfig(128, 64, 8, 2 if head_dim > 128 else 3)
