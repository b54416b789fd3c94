"""Which experts each token chose, kept beside the cache (routing replay).

Routers write what they choose into a buffer of the step, and the step's entries go where its tokens' keys go: so tokens
that were found in the prefix cache, shared or computed before have theirs, too.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from octavo.execution.inputs import StepInputs
from octavo.execution.state import BatchState
from octavo.kernels import StepShape
from octavo.layers.moe import Router
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import CapturedRouting, Plan, RoutedExperts, Step

_NO_EXPERT = -1
"""In layers without experts."""


@dataclass(slots=True)
class RoutedRows:
    """The experts of rows' tokens, once the copies of a step have arrived.

    Attributes:
        rows: indices in the step.
        counts: tokens of each row.
        experts: ``[sum(counts), layers, experts per token]`` int16.
    """

    rows: list[int]
    counts: list[int]
    experts: torch.Tensor

    def read(self) -> dict[int, RoutedExperts]:
        """Row → its tokens' experts."""
        parts = self.experts.split(self.counts)
        return {row: RoutedExperts.of(part.numpy()) for row, part in zip(self.rows, parts, strict=True)}


class NoCapture:
    """What a step calls if nobody asked for the experts of tokens: it keeps nothing."""

    def keep(self, shape: StepShape) -> None:
        """Keep what the step's tokens chose."""

    def take_changes(self, step: Step) -> None:
        """Add new requests."""

    def collect(self, step: Step, copies: HostCopies) -> RoutedRows | None:
        """The experts of all tokens, not collected before, of rows that draw."""
        return None


class RoutingCapture(NoCapture):
    """Keeps the experts of all tokens in the cache.

    Args:
        max_tokens: maximum number of tokens of a step, padding included.
    """

    def __init__(
        self,
        model: nn.Module,
        routing: CapturedRouting,
        plan: Plan,
        state: BatchState,
        inputs: StepInputs,
        max_tokens: int,
    ) -> None:
        self._group, self._state, self._inputs = routing.group, state, inputs
        self._block_size = plan.groups[routing.group].block_size
        self._device = state.header.device
        size = routing.num_layers, routing.num_chosen
        self._chosen = torch.full((max_tokens, *size), _NO_EXPERT, dtype=torch.int16, device=self._device)
        self._spare = plan.num_blocks * self._block_size  # for padding
        self._kept = torch.full((self._spare + 1, *size), _NO_EXPERT, dtype=torch.int16, device=self._device)
        # By slot, the number of tokens whose experts have been collected.
        self._num_collected = np.zeros(plan.max_num_seqs, np.int64)
        for name, module in model.named_modules():
            if isinstance(module, Router):
                module.routes = self._chosen[:, _layer_of(name)]

    def keep(self, shape: StepShape) -> None:
        places = self._inputs.slot_mapping[self._group, : shape.num_tokens]
        self._kept[places.where(places >= 0, self._spare)] = self._chosen[: shape.num_tokens]

    def take_changes(self, step: Step) -> None:
        for row in step.new_rows:
            num_known = len(row.token_ids)  # of a preempted request, what was known before has been collected
            self._num_collected[row.slot] = 0 if num_known == row.prompt_len else num_known - 1

    def collect(self, step: Step, copies: HostCopies) -> RoutedRows:
        rows = np.flatnonzero(step.num_drawn)
        slots = step.slots[rows]
        stops = (step.num_computed + step.num_scheduled_tokens)[rows].astype(np.int64)
        starts = self._num_collected[slots]
        self._num_collected[slots] = stops
        counts = stops - starts
        ends = np.cumsum(counts)
        positions = np.arange(counts.sum()) + np.repeat(starts - ends + counts, counts)
        index = to_device(np.stack((np.repeat(slots, counts), positions)), self._device)
        blocks = self._state.block_tables[self._group][index[0], index[1] // self._block_size]
        experts = self._kept[blocks * self._block_size + index[1] % self._block_size]
        return RoutedRows(rows.tolist(), counts.tolist(), copies.add(experts))


def _layer_of(name: str) -> int:
    """The layer of a module of this name."""
    return next(int(part) for part in name.split(".") if part.isdigit())
