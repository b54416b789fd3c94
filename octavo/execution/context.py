"""Expands a step for the layers that remember: what each cache group's block table means for its kind of cache."""

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch

from octavo.execution.inputs import StepInputs
from octavo.execution.kv_cache import CachePool
from octavo.execution.state import BatchState
from octavo.kernels import AttentionBackend, AttentionInputs, StepShape
from octavo.kernels.state_space import StateInputs
from octavo.layers.context import StepContext
from octavo.records import CacheGroup, CacheSpec, Full, Latent, Plan, State


@dataclass(slots=True)
class ContextBuilder:
    """Makes the context of steps.

    Attributes:
        state, inputs: where the device finds a step's rows.
        cache: the memory of the cache.
        backend: implementation of attention.
        dtype: compute type.
    """

    plan: Plan
    state: BatchState
    inputs: StepInputs
    cache: CachePool
    backend: AttentionBackend
    dtype: torch.dtype

    def context(self, shape: StepShape) -> StepContext:
        """The context of a step of this size."""
        inputs: dict[str, Any] = {}
        for index, group in enumerate(self.plan.groups):
            inputs |= dict.fromkeys(group.layers, _group_inputs(group.spec, self, index, group, shape))
        return StepContext(self.backend, self.cache.layers, inputs)

    def attention(
        self, index: int, group: CacheGroup, shape: StepShape, spec: Full | Latent, num_kv_heads: int
    ) -> AttentionInputs:
        """Inputs of attention over the tokens of a group's blocks.

        Args:
            num_kv_heads: key/value heads of a layer.
        """
        runs_per_block = 0
        if isinstance(spec, Full):
            keys = self.cache.layers[group.layers[0]][0]
            runs_per_block = keys.stride(1) // (group.block_size * spec.head_dim)
        return AttentionInputs(
            block_tables=self.state.block_tables[index],
            slots=self.state.row_slots[: shape.num_rows],
            slot_mapping=self.inputs.slot_mapping[index, : shape.num_tokens],
            block_size=group.block_size,
            num_kv_heads=num_kv_heads,
            runs_per_block=runs_per_block,
            window=group.signed_window,
            rows=self.inputs.rows,
            shape=shape,
        )


@singledispatch
def _group_inputs(spec: CacheSpec, make: ContextBuilder, index: int, group: CacheGroup, shape: StepShape) -> Any:
    """What the kernels of a kind of cache take, for the ``index``-th group."""
    raise TypeError(f"no kernels are registered for caches of the kind {type(spec).__name__}")


@_group_inputs.register
def _(spec: Full, make: ContextBuilder, index: int, group: CacheGroup, shape: StepShape) -> Any:
    inputs = make.attention(index, group, shape, spec, spec.num_kv_heads)
    return make.backend.plan(inputs, make.dtype)


@_group_inputs.register
def _(spec: Latent, make: ContextBuilder, index: int, group: CacheGroup, shape: StepShape) -> Any:
    return make.attention(index, group, shape, spec, 1)


@_group_inputs.register
def _(spec: State, make: ContextBuilder, index: int, group: CacheGroup, shape: StepShape) -> Any:
    return StateInputs(
        block_tables=make.state.block_tables[index],
        slots=make.state.row_slots[: shape.num_rows],
        page_size=group.block_size,
        num_places=make.plan.num_places,
        rows=make.inputs.rows,
        shape=shape,
    )
