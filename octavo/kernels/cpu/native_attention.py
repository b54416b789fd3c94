"""Paged attention by the compiled kernels, which read a step's rows where the step's inputs are."""

from dataclasses import dataclass

import torch

from octavo.kernels.attention import (
    NO_TERMS,
    AttentionBackend,
    AttentionInputs,
    AttentionSpec,
    HeadNorms,
    HeadTerms,
    RopeTables,
    attention_backend,
)
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.cpu.attention import CpuAttention, CpuAttentionPlan
from octavo.platforms.native import CACHE_NUMBERS, TYPE_NUMBERS, NativeKernels, profiled

_PROFILED = profiled("attention")
_GROUP = 16
"""Keys that one register holds; a block has a multiple of it."""


@dataclass(slots=True)
class NativePlan:
    """What all layers of a cache group share in a step.

    Attributes:
        handle: the compiled kernels' plan.
        rows: addresses and sizes that tell where the step's rows are.
        is_made: whether the plan is made; the first layer does it, which knows the number of query heads.
    """

    handle: object
    rows: tuple[int, ...]
    inputs: AttentionInputs
    is_made: bool = False


class NativeAttention(AttentionBackend):
    """Attention over blocks of a multiple of sixteen tokens; other blocks are PyTorch's.

    A head's keys in a block are stored transposed, ``[D][tokens]``, and in bfloat16 in pairs of dimensions,
    ``[D / 2][tokens][2]``.
    """

    def __init__(self, native: NativeKernels) -> None:
        self._native = native
        self._other = CpuAttention()

    def plan(self, inputs: AttentionInputs, dtype: torch.dtype) -> NativePlan | CpuAttentionPlan:
        if inputs.block_size % _GROUP:
            return self._other.plan(inputs, dtype)
        return NativePlan(self._native.new_plan(), attention_rows(inputs), inputs)

    def run(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: NativePlan | CpuAttentionPlan,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        if isinstance(plan, CpuAttentionPlan):
            return self._other.run(qkv, rope, norms, kv_cache, plan, spec, terms, scales)
        if not plan.is_made:
            self._native.plan_attention(plan.handle, *plan.rows, spec.num_heads // spec.num_kv_heads)
            plan.is_made = True
        output = qkv.new_empty(len(qkv), spec.num_heads * spec.head_dim)
        cos, sin = rope
        type_number = TYPE_NUMBERS[qkv.dtype]
        with _PROFILED:
            self._native.attention(
                plan.handle,
                *plan.rows,
                qkv.data_ptr(),
                kv_cache.data_ptr(),
                kv_cache.stride(0),
                kv_cache.stride(1),
                spec.num_heads,
                spec.num_kv_heads,
                spec.head_dim,
                type_number,
                *cache_type(kv_cache, scales, 1),
                address_of_heads(terms.sinks),
                address_of_heads(terms.slopes),
                0 if norms is None else norms.query.data_ptr(),
                0 if norms is None else norms.key.data_ptr(),
                0.0 if norms is None else norms.eps,
                type_number if norms is None else TYPE_NUMBERS[norms.query.dtype],
                cos.data_ptr(),
                sin.data_ptr(),
                cos.shape[-1],
                output.data_ptr(),
                spec.scale,
                spec.softcap or 0.0,
            )
        return output


def attention_rows(inputs: AttentionInputs) -> tuple[int, ...]:
    """Addresses and sizes that tell the compiled kernels where the step's rows are."""
    return (
        inputs.rows.counts.data_ptr(),
        inputs.rows.query_starts.data_ptr(),
        inputs.rows.seq_lens.data_ptr(),
        inputs.block_tables.data_ptr(),
        inputs.slots.data_ptr(),
        inputs.slot_mapping.data_ptr(),
        inputs.block_tables.stride(0),
        inputs.block_size,
        inputs.window or 0,
    )


def cache_type(cache: torch.Tensor, scales: CacheScales | None, block_dim: int) -> tuple[int, ...]:
    """What the compiled kernels need to know of a cache's type, and where its scales are.

    Args:
        block_dim: the dimension that counts blocks; one before it is that of keys and values, those of heads and tokens
            follow.
    """
    if scales is None:
        return (0,) * 7
    values = scales.values
    half, block = (values.stride(0) if block_dim else 0), values.stride(block_dim)
    head = values.stride(2) if block_dim else 0
    return CACHE_NUMBERS[cache.dtype], values.data_ptr(), half, block, head, values.stride(-1), scales.are_given


def address_of_heads(values: torch.Tensor | None) -> int:
    """The address of a constant per head; 0 if there is none."""
    if values is None:
        return 0
    assert values.dtype == torch.float32 and values.is_contiguous()
    return values.data_ptr()


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for attention on CPUs."""

    @attention_backend.register("cpu")
    def backend(device: torch.device, max_rows: int, max_model_len: int, *, deterministic: bool) -> AttentionBackend:
        return NativeAttention(native)
