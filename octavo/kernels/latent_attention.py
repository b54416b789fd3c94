"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in its absorbed form, over a cache of latent vectors.

With the up-projections absorbed into queries and outputs, all heads share one key per token: its compressed vector of
``rank`` values and its rotated part of ``rope_dim``. The value is the first ``rank`` of the same vector, so a layer's
cache is ``[blocks, block_size, rank + rope_dim]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch

from octavo.kernels.attention import AttentionInputs, RopeTables, causal_mask, sink_softmax
from octavo.kernels.basic import rms_norm, rotate_heads
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.dispatch import kernel
from octavo.kernels.head_linear import HeadLinear

_MAX_SCORES = 1 << 24
"""Maximum number of scores in memory at a time: 64 MiB."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Parameters of one layer of latent attention.

    Attributes:
        num_heads: query heads.
        rank, rope_dim: size of the compressed vector and of the rotated part, in this order in the cache.
        scale: factor of the scores.
    """

    num_heads: int
    rank: int
    rope_dim: int
    scale: float


@kernel
def store_latent(
    latent: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scales: CacheScales | None = None
) -> None:
    """Write a step's latent vectors into the cache.

    Args:
        latent: ``[≥ T, rank + rope_dim]``.
        cache: ``[blocks, block_size, rank + rope_dim]``; blocks may be any distance apart.
        slot_mapping: ``[T]`` int64, where each token goes, ``block · block_size + offset``; −1 stores nothing.
        scales: of a quantised cache.
    """
    is_stored = slot_mapping >= 0
    places = slot_mapping[is_stored]
    block_size = cache.shape[1]
    index = places // block_size, places % block_size
    new = latent[: len(slot_mapping)][is_stored]
    cache[index] = new if scales is None else scales.put(index, new, cache.dtype)


@kernel
def finish_latent(
    latent: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    rope: RopeTables,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: CacheScales | None = None,
    *,
    is_interleaved: bool,
) -> None:
    """Norm a step's compressed vectors, rotate their keys, and write both into the cache.

    Args:
        latent: ``[≥ T, rank + rope_dim]``, what the projections yield.
        norm: ``[rank]``; with ``eps`` see :func:`octavo.kernels.rms_norm`.
        rope: cosines and sines, ``[≥ T, 1, rope_dim]``.
        cache, slot_mapping, scales: see :func:`store_latent`.
        is_interleaved: see :func:`octavo.kernels.rotate_heads`.
    """
    compressed, key = latent.split((len(norm), latent.shape[1] - len(norm)), -1)
    normed = rms_norm(compressed.contiguous(), norm, eps)
    rotated = rotate_heads(key[:, None], *rope, is_interleaved=is_interleaved)[:, 0]
    store_latent(torch.cat((normed, rotated), -1), cache, slot_mapping, scales)


@kernel
def latent_inputs(
    queries: torch.Tensor,
    latent: torch.Tensor,
    to_latents: HeadLinear,
    norm: torch.Tensor,
    eps: float,
    rope: RopeTables,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: CacheScales | None = None,
    *,
    is_interleaved: bool,
) -> torch.Tensor:
    """What comes between the projections and :func:`latent_attention`: store a step's vectors and absorb its queries.

    Args:
        queries: ``[T, H, key_dim + rope_dim]``, what the projections yield; tokens may lie apart.
        to_latents: of each head, from a query of ``key_dim`` to ``rank`` values.
        latent, norm, eps, rope, cache, slot_mapping, scales, is_interleaved: see :func:`finish_latent`.

    Returns:
        ``[T, H, rank + rope_dim]``, the queries as cached vectors are compared with them.
    """
    finish_latent(latent, norm, eps, rope, cache, slot_mapping, scales, is_interleaved=is_interleaved)
    rank, size = len(norm), latent.shape[1]
    plain, rotary = queries.tensor_split((rank - size,), -1)
    absorbed = queries.new_empty(*queries.shape[:2], size)
    to_latents(plain, absorbed[..., :rank])
    rotate_heads(rotary, *rope, absorbed[..., rank:], is_interleaved=is_interleaved)
    return absorbed


@kernel
def latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    inputs: AttentionInputs,
    spec: LatentSpec,
    scales: CacheScales | None = None,
    sinks: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of a step's absorbed queries over the cached latent vectors; softmax in float32.

    Args:
        q: ``[≥ T, H, rank + rope_dim]``; rows past the step's tokens are padding.
        cache: ``[blocks, block_size, rank + rope_dim]`` with the step's tokens already stored.
        scales: of a quantised cache.
        sinks: ``[H]`` float32 logits that count in the denominator and have no value; None for none.
        chosen: positions of the tokens that each query attends to, see :func:`octavo.kernels.indexer.choose_tokens`;
            None for all up to its own.

    Returns:
        ``[≥ T, H, rank]``; padding is finite.
    """
    output = q.new_zeros(*q.shape[:2], spec.rank)
    if chosen is not None:
        for row, of_row, _ in tokens_of(inputs):
            vectors = gather_row(cache, scales, inputs, row)
            for token in of_row:
                seen = vectors[chosen[token, chosen[token] >= 0].long()]
                output[token] = _attend_chosen(q[token], seen, spec, sinks)
        return output
    starts = [0, *accumulate(inputs.query_lens)]
    # Decoding rows within a factor of two in length run together, so that padding at most doubles the work.
    decodes: dict[int, list[int]] = {}
    for row, (query_len, seq_len) in enumerate(zip(inputs.query_lens, inputs.seq_lens, strict=True)):
        if query_len == 1:
            decodes.setdefault(seq_len.bit_length(), []).append(row)
        elif query_len:
            own = slice(starts[row], starts[row + 1])
            output[own] = _attend_chunk(q[own], gather_row(cache, scales, inputs, row), spec, sinks)
    for rows in decodes.values():
        tokens = torch.tensor([starts[row] for row in rows], device=q.device)
        lengths = torch.tensor([inputs.seq_lens[row] for row in rows], device=q.device)
        vectors = _gather(cache, scales, inputs, rows)
        output[tokens] = _attend_decodes(q[tokens], vectors, lengths, spec, sinks).to(q.dtype)
    return output


def tokens_of(inputs: AttentionInputs) -> Iterator[tuple[int, range, range]]:
    """For each row of a step its index, its tokens within the step and their positions; waits for the device."""
    start = 0
    for row, (query_len, seq_len) in enumerate(zip(inputs.query_lens, inputs.seq_lens, strict=True)):
        yield row, range(start, start + query_len), range(seq_len - query_len, seq_len)
        start += query_len


def gather_row(cache: torch.Tensor, scales: CacheScales | None, inputs: AttentionInputs, row: int) -> torch.Tensor:
    """A row's cached vectors, ``[S, size]`` float32."""
    return _gather(cache, scales, inputs, [row])[0]


def _gather(cache: torch.Tensor, scales: CacheScales | None, inputs: AttentionInputs, rows: list[int]) -> torch.Tensor:
    """The rows' cached vectors, ``[B, S, rank + rope_dim]`` float32, S being the longest row's length.

    Past its end a row repeats its last vector: what lies there in the cache may be NaN, and 0 · NaN is NaN.
    """
    index = torch.tensor(rows, device=cache.device)
    last = torch.tensor([[inputs.seq_lens[row] - 1] for row in rows], device=cache.device)
    positions = torch.arange(max(inputs.seq_lens[row] for row in rows), device=cache.device).minimum(last)
    # A step that runs ahead may reach past the longest sequence; its results are never read.
    in_table = (positions // inputs.block_size).clamp(max=inputs.block_tables.shape[1] - 1)
    blocks = inputs.block_tables[inputs.slots[index].long()[:, None], in_table]
    places = blocks.long(), positions % inputs.block_size
    vectors = cache[places].float()
    return vectors if scales is None else vectors * scales.values[places][..., None]


def _attend_chosen(q: torch.Tensor, keys: torch.Tensor, spec: LatentSpec, sinks: torch.Tensor | None) -> torch.Tensor:
    """One query over the tokens that it sees: ``[H, rank + R]`` over ``[N, rank + R]`` → ``[H, rank]``."""
    scores = (q.float() * spec.scale) @ keys.T
    return (sink_softmax(scores, None if sinks is None else sinks[:, None]) @ keys[:, : spec.rank]).to(q.dtype)


def _attend_decodes(
    q: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor, spec: LatentSpec, sinks: torch.Tensor | None
) -> torch.Tensor:
    """One query per row: ``[B, H, rank + rope_dim]`` over ``[B, S, rank + rope_dim]`` → ``[B, H, rank]`` float32."""
    scores = torch.bmm(q.float() * spec.scale, keys.transpose(1, 2))
    is_past_end = torch.arange(keys.shape[1], device=q.device) >= lengths[:, None]
    scores = scores.masked_fill_(is_past_end[:, None], float("-inf"))
    weights = sink_softmax(scores, None if sinks is None else sinks[:, None])
    return torch.bmm(weights, keys[:, :, : spec.rank])


def _attend_chunk(q: torch.Tensor, keys: torch.Tensor, spec: LatentSpec, sinks: torch.Tensor | None) -> torch.Tensor:
    """The last Q tokens of a row: ``[Q, H, rank + rope_dim]`` over ``[S, rank + rope_dim]`` → ``[Q, H, rank]``."""
    first = len(keys) - len(q)
    tile = max(1, _MAX_SCORES // (spec.num_heads * len(keys)))
    parts = []
    for start in range(0, len(q), tile):
        queries = q[start : start + tile].float() * spec.scale
        visible = keys[: first + start + len(queries)]
        scores = (queries.flatten(0, 1) @ visible.T).view(*queries.shape[:2], -1)
        mask = causal_mask(len(queries), first + start, 0, len(visible), None, q.device)
        scores = scores.masked_fill_(~mask[:, None], float("-inf"))
        weights = sink_softmax(scores, None if sinks is None else sinks[:, None])
        parts.append((weights.flatten(0, 1) @ visible[:, : spec.rank]).view(*queries.shape[:2], -1))
    return torch.cat(parts)
