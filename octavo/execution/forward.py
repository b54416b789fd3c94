"""The forward pass of a step: from device state to hidden states."""

import torch
import torch.nn.functional as F

from octavo.execution.inputs import StepInputs
from octavo.execution.kv_cache import allocate_kv_caches
from octavo.execution.state import BatchState
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionBackend, AttentionInputs, StepKernels, StepShape, padded_rows
from octavo.layers.attention import StepAttention
from octavo.models.base import CausalLM
from octavo.records import CacheGroup, Plan


class ForwardPass:
    """A model with its cache and the state of the batch.

    Attributes:
        state: the batch on the device.
        inputs: a step's input tensors.
        kv_caches: per layer, see :func:`allocate_kv_caches`.

    Args:
        backend: implementation of attention.
        kernels: the kernels at the two ends of a step.
        max_tokens: maximum number of tokens of a step, padding included.
    """

    def __init__(
        self,
        model: CausalLM,
        config: ModelConfig,
        plan: Plan,
        device: torch.device,
        backend: AttentionBackend,
        kernels: StepKernels,
        max_tokens: int,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype: torch.dtype = getattr(torch, plan.dtype)
        self.state = BatchState(plan, device)
        self.inputs = StepInputs(plan, max_tokens, self.state, kernels)
        self.kv_caches = allocate_kv_caches(plan, config, self.dtype, device)
        self.backend = backend
        self._block_size = plan.block_size
        self._num_kv_heads = config.num_kv_heads
        by_layer = {layer: index for index, group in enumerate(plan.groups) for layer in group.layers}
        self._group_of_layer = [by_layer[layer] for layer in range(config.num_layers)]
        self._windows = [_effective_window(group, plan.max_model_len) for group in plan.groups]

    def run(self, shape: StepShape) -> torch.Tensor:
        """Hidden states ``[tokens, hidden]`` of the step described by device state."""
        self.inputs.fill(shape)
        num_tokens = shape.num_tokens
        token_ids, positions = self.inputs.token_ids[:num_tokens], self.inputs.positions[:num_tokens]
        hidden: torch.Tensor = self.model(token_ids, positions, self._attention(shape))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, computed for a padded number of rows."""
        num_rows = len(hidden)
        padding = padded_rows(self.device, num_rows) - num_rows
        return self.model.logits(F.pad(hidden, (0, 0, 0, padding)))[:num_rows]

    def wipe(self, blocks: torch.Tensor) -> None:
        """Zero some blocks, ``[N]`` int64."""
        for cache in self.kv_caches:
            cache[:, blocks] = 0

    def _attention(self, shape: StepShape) -> StepAttention:
        plans = [
            self.backend.plan(
                AttentionInputs(
                    block_tables=self.state.block_tables[group],
                    slots=self.state.row_slots[: shape.num_rows],
                    slot_mapping=self.inputs.slot_mapping[group, : shape.num_tokens],
                    block_size=self._block_size,
                    num_kv_heads=self._num_kv_heads,
                    window=window,
                    rows=self.inputs.rows,
                    shape=shape,
                ),
                self.dtype,
            )
            for group, window in enumerate(self._windows)
        ]
        return StepAttention(self.backend, self.kv_caches, [plans[group] for group in self._group_of_layer])


def _effective_window(group: CacheGroup, max_model_len: int) -> int | None:
    """A group's window; None if it spans ``max_model_len`` and so masks nothing."""
    return None if group.window is None or group.window >= max_model_len else group.window
