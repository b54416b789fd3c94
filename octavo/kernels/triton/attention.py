"""Paged attention on a GPU: chooses the kernels of a layer from the step's shape.

Decoding rows (one token, and drafts) take one launch, :mod:`decode_attention`: norms, rotation, cache store and
attention. Where few rows decode a token each on Hopper, :mod:`octavo.kernels.cuda.attention` does the same. Chunks take
two: :mod:`rotary` norms, rotates and stores, then :mod:`prefill_attention` attends. On Hopper the second one may store
the keys and values of fresh prompts, which it loads anyway; those of a quantised cache it reads rounded where the first
one left them, or from a buffer that one more launch fills.
"""

from typing import Any

import torch

from octavo.kernels.attention import (
    NO_TERMS,
    AttentionBackend,
    AttentionInputs,
    AttentionSpec,
    HeadNorms,
    HeadTerms,
    RopeTables,
    StepShape,
)
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.cuda import attention as cluster_attention
from octavo.kernels.triton.decode_attention import (
    MANY_PROGRAMS,
    MAX_CHUNKS,
    Cut,
    DecodeTile,
    DecodeWorkspace,
    choose_cut,
    choose_tile,
    decode_attention,
)
from octavo.kernels.triton.launch import is_hopper, num_multiprocessors
from octavo.kernels.triton.prefill_attention import prefill_attention, rounds_keys, stores_keys
from octavo.kernels.triton.prefill_expand import ExpandedKeys
from octavo.kernels.triton.rotary import qk_rope_store

_DETERMINISTIC_CUT = Cut(8, 512)


class TritonAttention(AttentionBackend):
    """Attention whose kernels read lengths on the device, so that one captured launch serves any mix of them.

    Args:
        max_rows, max_model_len: maximum number of rows in a step and of tokens in a sequence.
        deterministic: split a row's sums by its own length only, so that its bits do not depend on the batch.
    """

    def __init__(self, device: torch.device, max_rows: int, max_model_len: int, *, deterministic: bool) -> None:
        self._device = device
        self._num_sms = num_multiprocessors(device)
        self._max_rows = max_rows
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._workspaces: dict[tuple[int, int, int], DecodeWorkspace] = {}
        self._expanded: ExpandedKeys | None = None

    def plan(self, inputs: AttentionInputs, dtype: torch.dtype) -> AttentionInputs:
        return inputs

    def run(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: AttentionInputs,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        shape = plan.shape
        rows = plan.rows
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        out = torch.empty(len(qkv), heads, spec.head_dim, dtype=qkv.dtype, device=qkv.device)
        query, key, eps = (None, None, 0.0) if norms is None else (norms.query, norms.key, norms.eps)
        if shape.has_chunks:
            split_qkv = qkv.view(len(qkv), heads + 2 * kv_heads, spec.head_dim)
            counts = rows.counts if shape.has_decodes else None
            q, k, v = split_qkv.split((heads, kv_heads, kv_heads), 1)
            chunks = self._chunks(plan, terms, scales)
            stores_later = stores_keys(q, k, kv_cache, has_decodes=shape.has_decodes, **chunks)
            qk_rope_store(
                split_qkv, query, key, eps, *rope, None if stores_later else kv_cache, plan.slot_mapping, heads,
                kv_heads, counts, scales=scales, rounds_in_place=rounds_keys(q, k, **chunks),
            )  # fmt: skip
        cluster_tile = self._cluster_tile(qkv, rope, norms, kv_cache, plan, spec, terms)
        if cluster_tile is not None:
            cluster_attention.attend(
                qkv, *rope, query, key, eps, kv_cache, plan.block_tables, plan.slots, rows.seq_lens, rows.counts, out,
                num_rows=shape.num_rows, scale=spec.scale, tile=cluster_tile,
            )  # fmt: skip
        elif shape.has_decodes:
            decode_attention(qkv, *rope, query, key, eps, **self._decoding(kv_cache, plan, spec, terms, out, scales))
        if shape.has_chunks:
            prefill_attention(
                q, k, v, kv_cache, plan.block_tables, plan.slots, rows.query_starts, rows.seq_lens, rows.counts, out,
                scale=spec.scale, softcap=spec.softcap, sinks=terms.sinks,
                slot_mapping=plan.slot_mapping if stores_later else None,
                num_cached_tokens=shape.num_cached_tokens,
                expanded=None if scales is None else self._expanded_keys(),
                **chunks,
            )  # fmt: skip
        return out.flatten(1)

    def _cluster_tile(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: AttentionInputs,
        spec: AttentionSpec,
        terms: HeadTerms,
    ) -> cluster_attention.AttentionTile | None:
        """The tile for attention by clusters; None where the step needs Triton's kernel, or that is faster."""
        shape = plan.shape
        if (
            self._deterministic
            or not is_hopper(self._device)
            or not shape.has_decodes
            or shape.has_chunks
            or shape.decode_len > 1
            or plan.window is not None
            or spec.softcap is not None
            or not terms.are_none
        ):
            return None
        return cluster_attention.choose(
            qkv, rope, norms, kv_cache, spec, shape.num_rows, self._max_model_len, self._num_sms
        )

    def _decoding(
        self,
        kv_cache: torch.Tensor,
        plan: AttentionInputs,
        spec: AttentionSpec,
        terms: HeadTerms,
        out: torch.Tensor,
        scales: CacheScales | None,
    ) -> dict[str, Any]:
        """Keyword arguments of :func:`decode_attention` other than the rows' own tensors."""
        rows, shape = plan.rows, plan.shape
        workspace = self._workspace(spec, shape.decode_len)
        head_bytes = spec.head_dim * kv_cache.element_size()
        is_quantized = scales is not None
        tile = self._tile(shape, spec, head_bytes, out.dtype, is_quantized)
        return {
            "kv_cache": kv_cache,
            "block_tables": plan.block_tables,
            "slots": plan.slots,
            "seq_lens": rows.seq_lens,
            "query_starts": None if shape.decode_len == 1 else rows.query_starts,
            "counts": rows.counts,
            "out": out,
            "workspace": workspace,
            "num_rows": shape.num_rows,
            "length": shape.decode_len,
            "scale": spec.scale,
            "window": plan.window,
            "softcap": spec.softcap,
            "sinks": terms.sinks,
            "slopes": terms.slopes,
            "cut": self._cut(shape.num_rows, spec, head_bytes, tile, workspace, is_quantized),
            # With chunks in the step, a row's prefix may include blocks that the preceding launch is still storing.
            "reads_early": not shape.has_chunks,
            "tile": tile,
            "scales": scales,
        }

    def _chunks(self, plan: AttentionInputs, terms: HeadTerms, scales: CacheScales | None) -> dict[str, Any]:
        """Keyword arguments of :func:`stores_keys`, :func:`rounds_keys` and :func:`prefill_attention`."""
        shape = plan.shape
        return {
            "num_tokens": shape.num_tokens,
            "num_rows": shape.num_rows,
            "max_query_len": shape.max_query_len,
            "is_fresh": shape.is_fresh,
            "window": plan.window,
            "slopes": terms.slopes,
            "deterministic": self._deterministic,
            "scales": scales,
        }

    def _cut(
        self,
        num_rows: int,
        spec: AttentionSpec,
        head_bytes: int,
        tile: DecodeTile,
        workspace: DecodeWorkspace,
        is_quantized: bool,
    ) -> Cut:
        if self._deterministic:
            # A row's bits depend on how it is split into chunks, not on how programs share the chunks.
            num_programs = 2 * self._num_sms // (num_rows * spec.num_kv_heads)
            return _DETERMINISTIC_CUT._replace(num_programs=min(max(num_programs, 1), _DETERMINISTIC_CUT.max_chunks))
        return choose_cut(
            num_rows,
            spec.num_kv_heads,
            head_bytes,
            self._max_model_len,
            self._num_sms,
            tile,
            len(workspace.logsums),
            is_quantized=is_quantized,
        )

    def _tile(
        self, shape: StepShape, spec: AttentionSpec, head_bytes: int, dtype: torch.dtype, is_quantized: bool
    ) -> DecodeTile:
        num_programs = MANY_PROGRAMS + 1 if self._deterministic else shape.num_rows * spec.num_kv_heads
        num_queries = shape.decode_len * spec.num_heads // spec.num_kv_heads
        return choose_tile(head_bytes, dtype, num_programs, num_queries, is_quantized=is_quantized)

    def _expanded_keys(self) -> ExpandedKeys | None:
        """Room for what a quantised cache holds, if there is a kernel that reads it there."""
        if self._expanded is None and is_hopper(self._device) and not self._deterministic:
            self._expanded = ExpandedKeys.allocate(self._max_rows, self._device)
        return self._expanded

    def _workspace(self, spec: AttentionSpec, length: int) -> DecodeWorkspace:
        """The workspace for enough chunks to fill the device, and for at least one per row."""
        num_heads = spec.num_heads * length
        key = (num_heads, spec.num_kv_heads, spec.head_dim)
        if key not in self._workspaces:
            wanted = max(MAX_CHUNKS, 4 * self._num_sms // spec.num_kv_heads)
            splits = _DETERMINISTIC_CUT.max_chunks if self._deterministic else -(-wanted // self._max_rows)
            self._workspaces[key] = DecodeWorkspace.allocate(
                self._max_rows, num_heads, spec.head_dim, splits, self._device
            )
        return self._workspaces[key]
