"""Paged attention on a GPU: one kernel for rows that decode, one for chunks, one that stores what both read."""

import torch

from octavo.kernels.attention import AttentionBackend, AttentionInputs, AttentionSpec, HeadNorms, RopeTables
from octavo.kernels.triton.decode_attention import DecodeWorkspace, choose_splits, decode_attention
from octavo.kernels.triton.launch import num_multiprocessors
from octavo.kernels.triton.prefill_attention import prefill_attention
from octavo.kernels.triton.rotary import qk_rope_store


class TritonAttention(AttentionBackend):
    """Reads lengths on the device, so that one captured launch serves any mix of them.

    Args:
        max_model_len: tokens of the longest sequence.
        deterministic: whether a row's sums are cut by its own length alone, so that its bits do not depend on the batch.
    """

    def __init__(self, device: torch.device, max_model_len: int, *, deterministic: bool) -> None:
        self._num_sms = num_multiprocessors(device)
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._workspace = DecodeWorkspace(device)

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
    ) -> torch.Tensor:
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        assert plan.rows is not None and plan.shape is not None, "the lengths are on the device"
        qkv = qkv.view(len(qkv), heads + 2 * kv_heads, spec.head_dim)
        weights = (None, None, 0.0) if norms is None else (norms.query, norms.key, norms.eps)
        qk_rope_store(qkv, *weights, *rope, kv_cache, plan.slot_mapping, heads, kv_heads)
        out = torch.empty(len(qkv), heads, spec.head_dim, dtype=qkv.dtype, device=qkv.device)
        if plan.shape.has_decodes:
            self._decode(qkv[:, :heads], kv_cache, plan, spec, out)
        if plan.shape.has_chunks:
            self._prefill(qkv, kv_cache, plan, spec, out)
        return out.flatten(1)

    def _decode(
        self, q: torch.Tensor, kv_cache: torch.Tensor, plan: AttentionInputs, spec: AttentionSpec, out: torch.Tensor
    ) -> None:
        rows, shape = plan.rows, plan.shape
        assert rows is not None and shape is not None
        num_splits = choose_splits(shape.num_rows, spec.num_kv_heads, self._max_model_len, self._num_sms)
        decode_attention(
            q,
            kv_cache,
            plan.block_tables,
            plan.slots,
            rows.seq_lens,
            rows.counts,
            out,
            self._workspace,
            num_rows=shape.num_rows,
            scale=spec.scale,
            window=plan.window,
            softcap=spec.softcap,
            sinks=None,
            num_splits=num_splits,
            deterministic=self._deterministic,
        )

    def _prefill(
        self, qkv: torch.Tensor, kv_cache: torch.Tensor, plan: AttentionInputs, spec: AttentionSpec, out: torch.Tensor
    ) -> None:
        rows, shape = plan.rows, plan.shape
        assert rows is not None and shape is not None
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        k, v = (qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]) if shape.is_fresh else (None, None)
        prefill_attention(
            qkv[:, :heads],
            k,
            v,
            kv_cache,
            plan.block_tables,
            plan.slots,
            rows.query_starts,
            rows.seq_lens,
            rows.counts,
            out,
            num_tokens=shape.num_tokens,
            num_rows=shape.num_rows,
            max_query_len=shape.max_query_len,
            scale=spec.scale,
            window=plan.window,
            softcap=spec.softcap,
            sinks=None,
        )
