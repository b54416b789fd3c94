"""The forward pass of a step: from device state to hidden states."""

import torch
import torch.nn.functional as F

from octavo.execution.context import ContextBuilder
from octavo.execution.inputs import StepInputs
from octavo.execution.kv_cache import allocate_cache
from octavo.execution.routed_experts import NoCapture, RoutingCapture
from octavo.execution.state import BatchState
from octavo.kernels import AttentionBackend, StepKernels, StepShape, padded_rows
from octavo.models.base import CausalLM
from octavo.records import Plan


class ForwardPass:
    """A model with its cache and the state of the batch.

    Attributes:
        state: the batch on the device.
        inputs: a step's input tensors.
        cache: the memory of the cache.
        contexts: makes the contexts of steps.
        routing: captures the experts that tokens choose, if somebody asked for them.

    Args:
        backend: implementation of attention.
        kernels: the kernels at the two ends of a step.
        max_tokens: maximum number of tokens of a step, padding included.
    """

    def __init__(
        self,
        model: CausalLM,
        plan: Plan,
        device: torch.device,
        backend: AttentionBackend,
        kernels: StepKernels,
        max_tokens: int,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype: torch.dtype = getattr(torch, plan.dtype)
        self.state = BatchState(plan, max_tokens, device)
        self.inputs = StepInputs(plan, max_tokens, self.state, kernels)
        self.cache = allocate_cache(plan, device)
        self.contexts = ContextBuilder(plan, self.state, self.inputs, self.cache, backend, self.dtype)
        self.routing = NoCapture()
        if plan.routing is not None:
            self.routing = RoutingCapture(model, plan.routing, plan, self.state, self.inputs, max_tokens)

    def run(self, shape: StepShape) -> torch.Tensor:
        """Hidden states ``[tokens, hidden]`` of the step whose inputs are filled."""
        num_tokens = shape.num_tokens
        token_ids, positions = self.inputs.token_ids[:num_tokens], self.inputs.positions[:num_tokens]
        hidden: torch.Tensor = self.model(token_ids, positions, self.contexts.context(shape))
        self.routing.keep(shape)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, computed for a padded number of rows."""
        num_rows = len(hidden)
        padding = padded_rows(self.device, num_rows) - num_rows
        if padding == 0:
            return self.model.logits(hidden)
        return self.model.logits(F.pad(hidden, (0, 0, 0, padding)))[:num_rows]

    def wipe(self, blocks: torch.Tensor) -> None:
        """Zero some blocks, ``[N]`` int64."""
        self.cache.blocks[blocks] = 0
