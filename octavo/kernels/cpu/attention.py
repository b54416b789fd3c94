"""Paged attention on the CPU: gather blocks, then PyTorch's fused attention.

Requests with one new token run together, in groups of similar length, their grouped query heads
packed as if they were several queries of one key head. Longer chunks run one request at a time.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo.kernels.attention import AttentionBackend, AttentionInputs, AttentionSpec, ReferenceAttention, causal_mask


@dataclass(slots=True)
class _DecodeGroup:
    """Requests of similar length with one query each.

    Attributes:
        rows: ``[B]`` int64, their tokens in the step; None if they are tokens 0 to B − 1 and nothing else.
        blocks: ``[B · blocks]`` int64, what to gather.
        mask: ``[B, 1, 1, S]`` additive; None if every gathered key counts.
    """

    rows: torch.Tensor | None
    num_rows: int
    blocks: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class _Chunk:
    """Several queries of one request.

    Attributes:
        start, stop: its tokens in the step.
        blocks: int64, what to gather.
        num_keys: keys that count, from the first gathered one.
        mask: ``[queries, keys]`` additive; None for plain causal attention from position 0.
    """

    start: int
    stop: int
    blocks: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None


@dataclass(slots=True)
class CpuAttentionPlan:
    """What all layers of a cache group share in one step."""

    inputs: AttentionInputs
    decodes: list[_DecodeGroup]
    chunks: list[_Chunk]


class CpuAttention(AttentionBackend):
    """Gathers a request's blocks and calls PyTorch's fused attention."""

    def plan(self, inputs: AttentionInputs, dtype: torch.dtype) -> CpuAttentionPlan:
        single = [row for row, length in enumerate(inputs.query_lens) if length == 1]
        chunks, start = [], 0
        for row, length in enumerate(inputs.query_lens):
            if length > 1:
                chunks.append(_plan_chunk(inputs, row, start, dtype))
            start += length
        return CpuAttentionPlan(inputs, _plan_decodes(inputs, single, dtype), chunks)

    def attend(
        self, q: torch.Tensor, kv_cache: torch.Tensor, plan: CpuAttentionPlan, spec: AttentionSpec
    ) -> torch.Tensor:
        if spec.softcap is not None:
            return _REFERENCE.attend(q, kv_cache, plan.inputs, spec)
        if len(plan.decodes) == 1 and plan.decodes[0].rows is None:
            return _attend_decodes(q, kv_cache, plan.decodes[0], spec)
        output = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in plan.decodes:
            output[group.rows] = _attend_decodes(q[group.rows], kv_cache, group, spec)
        for chunk in plan.chunks:
            output[chunk.start : chunk.stop] = _attend_chunk(q[chunk.start : chunk.stop], kv_cache, chunk, spec)
        return output


_REFERENCE = ReferenceAttention()


def _first_block(inputs: AttentionInputs, row: int) -> int:
    """Index in the block table of the first block that any of the row's queries sees."""
    if inputs.window is None:
        return 0
    first_query = inputs.seq_lens[row] - inputs.query_lens[row]
    return max(0, first_query - inputs.window + 1) // inputs.block_size


def _plan_decodes(inputs: AttentionInputs, rows: list[int], dtype: torch.dtype) -> list[_DecodeGroup]:
    """Group rows whose gathered lengths lie within a factor of two, so that padding at most doubles the work."""
    by_magnitude: dict[int, list[int]] = {}
    for row in rows:
        num_blocks = -(-inputs.seq_lens[row] // inputs.block_size) - _first_block(inputs, row)
        by_magnitude.setdefault(num_blocks.bit_length(), []).append(row)
    starts = _token_starts(inputs)
    covers_step = len(by_magnitude) == 1 and len(rows) == len(inputs.query_lens)
    return [_plan_decode_group(inputs, group, starts, covers_step, dtype) for group in by_magnitude.values()]


def _token_starts(inputs: AttentionInputs) -> list[int]:
    starts, total = [], 0
    for length in inputs.query_lens:
        starts.append(total)
        total += length
    return starts


def _plan_decode_group(
    inputs: AttentionInputs, rows: list[int], starts: list[int], covers_step: bool, dtype: torch.dtype
) -> _DecodeGroup:
    size = inputs.block_size
    firsts = [_first_block(inputs, row) for row in rows]
    width = max(-(-inputs.seq_lens[row] // size) - first for row, first in zip(rows, firsts, strict=True))
    first = torch.tensor(firsts)
    index = first[:, None] + torch.arange(width)
    # Rows shorter than the group's widest gather whatever stands there: entries are clamped to the table, then masked.
    index.clamp_(max=inputs.block_tables.shape[1] - 1)
    blocks = inputs.block_tables[torch.tensor(rows)[:, None], index].long().flatten()
    lengths = torch.tensor([inputs.seq_lens[row] for row in rows])
    positions = torch.arange(width * size) + (first * size)[:, None]  # [B, S]
    visible = positions < lengths[:, None]
    if inputs.window is not None:
        visible &= positions >= lengths[:, None] - inputs.window
    mask = None if bool(visible.all()) else _additive(visible, dtype)[:, None, None, :]
    token_rows = None if covers_step else torch.tensor([starts[row] for row in rows])
    return _DecodeGroup(token_rows, len(rows), blocks, mask)


def _plan_chunk(inputs: AttentionInputs, row: int, start: int, dtype: torch.dtype) -> _Chunk:
    query_len, seq_len = inputs.query_lens[row], inputs.seq_lens[row]
    first = _first_block(inputs, row)
    blocks = inputs.block_tables[row, first : -(-seq_len // inputs.block_size)].long()
    first_key, first_query = first * inputs.block_size, seq_len - query_len
    num_keys = seq_len - first_key
    mask = None
    if first_query > 0 or (inputs.window is not None and inputs.window < seq_len):
        visible = causal_mask(query_len, first_query, first_key, num_keys, inputs.window, blocks.device)
        mask = _additive(visible, dtype)
    return _Chunk(start, start + query_len, blocks, num_keys, mask)


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))


def _gather(kv_cache: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of some blocks, ``[blocks · block_size, Hkv, D]`` each."""
    keys = kv_cache[0].index_select(0, blocks).flatten(0, 1)
    values = kv_cache[1].index_select(0, blocks).flatten(0, 1)
    return keys, values


def _attend_decodes(q: torch.Tensor, kv_cache: torch.Tensor, group: _DecodeGroup, spec: AttentionSpec) -> torch.Tensor:
    keys, values = _gather(kv_cache, group.blocks)
    shape = (group.num_rows, -1, spec.num_kv_heads, spec.head_dim)
    packed = q.view(group.num_rows, spec.num_kv_heads, -1, spec.head_dim)  # [B, Hkv, H/Hkv, D]
    output = F.scaled_dot_product_attention(
        packed,
        keys.view(shape).transpose(1, 2),
        values.view(shape).transpose(1, 2),
        attn_mask=group.mask,
        scale=spec.scale,
    )
    return output.reshape(q.shape)


def _attend_chunk(q: torch.Tensor, kv_cache: torch.Tensor, chunk: _Chunk, spec: AttentionSpec) -> torch.Tensor:
    keys, values = _gather(kv_cache, chunk.blocks)
    output = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[: chunk.num_keys].transpose(0, 1)[None],
        values[: chunk.num_keys].transpose(0, 1)[None],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        scale=spec.scale,
        enable_gqa=spec.num_heads != spec.num_kv_heads,
    )
    return output[0].transpose(0, 1)
