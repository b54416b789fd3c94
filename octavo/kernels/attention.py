"""The interface of paged causal attention, and its PyTorch reference.

A backend gets a step's Q, K and V rows, the layer's cache and the step's :class:`AttentionInputs`; it stores K and V
in the cache and returns the attended values. Backends: ``cpu/attention.py`` and ``triton/attention.py``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from octavo.kernels.basic import apply_rope, rms_norm
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.dispatch import device_function

RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and signed sines of a step's tokens, ``[T, 1, R]`` each; see :func:`octavo.kernels.apply_rope`."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the host knows of a step's size: exact, or upper bounds if one captured graph serves many steps.

    Attributes:
        num_rows, num_tokens: requests and tokens.
        max_query_len: maximum number of tokens of one request.
        has_decodes, has_chunks: whether decoding rows, of at most ``decode_len`` tokens, and longer ones may occur.
        is_fresh: whether every longer row starts at position 0, with nothing in the cache.
        decode_len: maximum number of tokens of a decoding row.
        num_cached_tokens: maximum number of tokens that longer rows have in the cache before the step, in total; None
            if that is unknown.
    """

    num_rows: int
    num_tokens: int
    max_query_len: int
    has_decodes: bool
    has_chunks: bool
    is_fresh: bool
    decode_len: int = 1
    num_cached_tokens: int | None = None


@dataclass(slots=True)
class DeviceRows:
    """The rows of a step as kernels read them, all on the device.

    Attributes:
        counts: int32: number of rows, of decoding rows (which come first), of tokens; mean length of the decoding rows,
            number of their tokens.
        query_starts: ``[R + 1]`` int32, each row's first token among T.
        seq_lens: ``[R]`` int32, tokens of each request after this step.
    """

    counts: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor


@dataclass
class AttentionInputs:
    """A step's inputs for attention, for one cache group of ``R`` requests and ``T`` tokens.

    Attributes:
        block_tables: ``[S, max_blocks]`` int32 on the device, by slot; entries past a request's length are arbitrary.
        slots: ``[R]`` integers on the device, each row's slot.
        slot_mapping: ``[T]`` int64 on the device, where each new token goes in the cache; −1 for padding.
        block_size: tokens per block.
        num_kv_heads: key/value heads of every layer of the group.
        runs_per_block: distance from a block to the next, in heads' runs of ``block_size`` keys; 0 for latent vectors.
        window: number of tokens that a query attends to, itself included; negative for chunks of so many tokens, within
            which queries attend; None for all tokens.
        rows: the rows' lengths.
        shape: the step's size, or bounds of it.
    """

    block_tables: torch.Tensor
    slots: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    num_kv_heads: int
    runs_per_block: int
    window: int | None
    rows: DeviceRows
    shape: StepShape

    @cached_property
    def query_lens(self) -> list[int]:
        """Tokens of each real row in this step, for backends that plan on the host; waits for the device."""
        num_rows = int(self.rows.counts[0])
        return self.rows.query_starts[: num_rows + 1].diff().tolist()

    @cached_property
    def seq_lens(self) -> list[int]:
        """Tokens of each real row after this step, likewise."""
        return self.rows.seq_lens[: int(self.rows.counts[0])].tolist()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Parameters of one attention layer.

    Attributes:
        num_heads, num_kv_heads, head_dim: query heads, key/value heads, size of each.
        scale: factor of the scores.
        softcap: scores become ``c · tanh(scores / c)``; None for no cap.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Root-mean-square norms of each query and key head: weights ``[D]``."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadTerms:
    """What each query head adds to its softmax beside scaled scores; such a term costs nothing where it is None.

    They are tensors of the layer, which are loaded, moved and divided among devices as its weights are, and read where
    they lie by kernels and by recorded steps. Hence they are an argument of :meth:`AttentionBackend.run`, as
    :class:`HeadNorms` are; an :class:`AttentionSpec` has only numbers that are known when the layer is built.

    Attributes:
        sinks: attention sinks (arXiv:2309.17453): ``[H]`` float32 logits that count in the denominator and have no
            value.
        slopes: ALiBi (arXiv:2108.12409): ``[H]`` float32; the score of the key ``n`` tokens before the query, capped
            if scores are, falls by ``slope · n``.
    """

    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None

    @property
    def are_none(self) -> bool:
        """Whether the softmax is over the scores alone."""
        return self.sinks is None and self.slopes is None


NO_TERMS = HeadTerms()
"""Scores alone."""

EXPANDED_BYTES = 256 << 20
"""Size of the buffer in which prefill on Hopper has keys and values of a quantised cache in the compute type.

It holds eight heads of 128 dimensions for 65,536 tokens. Longer steps take some heads after others, down to one head of
524,288 tokens.
"""

MAX_DECODE_QUERIES = 64
"""Maximum number of queries of a decoding row per key/value head: its tokens times the query heads of a group."""


class LayerAttention(ABC):
    """What a layer asks of attention, with or without a cache."""

    @abstractmethod
    def run(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: Any,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        """Everything between the QKV and the output projection: norms, rotation, storing keys and values, attention.

        Args:
            qkv: ``[≥ T, (H + 2·Hkv)·D]``, may be overwritten; rows past the step's tokens are padding.
            scales: of a quantised cache; None if it has the compute type.

        Returns:
            ``[≥ T, H·D]``; padding is arbitrary.
        """


class AttentionBackend(LayerAttention):
    """An implementation of paged causal attention; chosen once at startup.

    The cache of a layer is ``[2, blocks, Hkv, block_size, D]``, keys and values: within a block, each head's tokens
    are contiguous, so a head's keys are read as one run. Between the blocks of a layer lie those of other layers.
    """

    @abstractmethod
    def plan(self, inputs: AttentionInputs, dtype: torch.dtype) -> Any:
        """Prepare what all layers of a cache group share in a step; the result is passed to :meth:`run`."""


class ComposedAttention(AttentionBackend):
    """Attention as a sequence of separate operations."""

    def run(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: Any,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv = qkv.view(len(qkv), heads + 2 * kv_heads, spec.head_dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if norms is not None:
            queries = rms_norm(qk[:, :heads], norms.query, norms.eps)
            qk = torch.cat((queries, rms_norm(qk[:, heads:], norms.key, norms.eps)), dim=1)
        qk = apply_rope(qk, *rope)
        self.store(qk[:, heads:], v, kv_cache, plan, scales)
        return self.attend(qk[:, :heads], kv_cache, plan, spec, terms, scales).flatten(1)

    @abstractmethod
    def store(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_cache: torch.Tensor,
        plan: Any,
        scales: CacheScales | None = None,
    ) -> None:
        """Write the step's keys and values into the cache.

        Args:
            k, v: ``[≥ T, Hkv, D]``; rows past the step's tokens are padding and go nowhere.
            scales: of a quantised cache.
        """

    @abstractmethod
    def attend(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        plan: Any,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        """Attention of new queries over the cached keys and values.

        Args:
            q: ``[≥ T, H, D]``; rows past the step's tokens are padding.
            kv_cache: ``[2, blocks, Hkv, block_size, D]`` with this step's tokens already stored.
            scales: of a quantised cache.

        Returns:
            Of ``q``'s shape; padding yields zeros.
        """


class ReferenceAttention(ComposedAttention):
    """One request after another, in float32; tests compare the fast backends with it."""

    def plan(self, inputs: AttentionInputs, dtype: torch.dtype) -> AttentionInputs:
        return inputs

    def store(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_cache: torch.Tensor,
        plan: AttentionInputs,
        scales: CacheScales | None = None,
    ) -> None:
        mapping = plan.slot_mapping[: sum(plan.query_lens)]
        blocks, offsets = mapping // plan.block_size, mapping % plan.block_size
        for half, heads in enumerate((k, v)):
            new = heads[: len(blocks)]
            index = half, blocks, slice(None), offsets
            kv_cache[index] = new if scales is None else scales.put(index, new, kv_cache.dtype)

    def attend(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        plan: AttentionInputs,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        output = torch.zeros_like(q, memory_format=torch.contiguous_format)
        start = 0
        for row, (query_len, seq_len) in enumerate(zip(plan.query_lens, plan.seq_lens, strict=True)):
            num_blocks = -(-seq_len // plan.block_size)
            blocks = plan.block_tables[plan.slots[row], :num_blocks].long()
            cached = kv_cache[:, blocks].float()  # [2, N, Hkv, block_size, D]
            if scales is not None:
                cached *= scales.values[:, blocks, ..., None]
            keys, values = cached.transpose(2, 3).flatten(1, 2)[:, :seq_len]  # [S, Hkv, D] each
            queries = q[start : start + query_len].float()
            attended = _attend_one(queries, keys, values, seq_len - query_len, plan.window, spec, terms)
            output[start : start + query_len] = attended.to(q.dtype)
            start += query_len
        return output


@device_function
def attention_backend(
    device: torch.device, max_rows: int, max_model_len: int, *, deterministic: bool
) -> AttentionBackend:
    """The fastest attention for a device.

    Args:
        max_rows, max_model_len: maximum number of rows in a step and of tokens in a sequence.
        deterministic: whether a row's bits must not depend on the other rows.
    """
    return ReferenceAttention()


def causal_mask(
    query_len: int, first_query: int, first_key: int, num_keys: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """Which keys each query may see.

    Args:
        first_query, first_key: positions of the first query and the first key in the sequence.

    Returns:
        ``[query_len, num_keys]`` bool.
    """
    queries = torch.arange(first_query, first_query + query_len, device=device)[:, None]
    keys = torch.arange(first_key, first_key + num_keys, device=device)[None, :]
    visible = keys <= queries
    if window is not None:
        visible &= keys >= first_visible(queries, window)
    return visible


def first_visible(positions: torch.Tensor, window: int) -> torch.Tensor:
    """The first key that queries at some positions see; it may be negative.

    Args:
        window: see :class:`AttentionInputs`.
    """
    return positions - positions % -window if window < 0 else positions - window + 1


def sink_softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension, whose denominator has one more logit.

    Args:
        sinks: that logit, of a shape that broadcasts to ``scores[..., :1]``; None for none.
    """
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)[..., :-1]


def _attend_one(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    first_query: int,
    window: int | None,
    spec: AttentionSpec,
    terms: HeadTerms,
) -> torch.Tensor:
    groups = spec.num_heads // spec.num_kv_heads
    keys = keys.repeat_interleave(groups, dim=1)
    values = values.repeat_interleave(groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if terms.slopes is not None:
        positions = torch.arange(len(keys), device=queries.device)
        scores -= terms.slopes[:, None, None] * (positions[first_query:, None] - positions)
    visible = causal_mask(len(queries), first_query, 0, len(keys), window, queries.device)
    scores = scores.masked_fill(~visible, float("-inf"))
    sinks = None if terms.sinks is None else terms.sinks[:, None, None]
    return torch.einsum("hqk,khd->qhd", sink_softmax(scores, sinks), values)
