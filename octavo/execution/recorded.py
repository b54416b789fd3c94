"""Small decode steps, recorded when they first occur and replayed from then on.

For devices that record at the cost of a step (:attr:`octavo.platforms.Platform.records_steps`); graphs that are worth
capturing ahead of time are in ``graphs.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.kernels import StepShape
from octavo.platforms import DeviceRuntime, Graph

Compute = Callable[[StepShape], tuple[torch.Tensor, torch.Tensor | None]]
"""Runs a step of a shape, whose inputs are filled; returns hidden states and logits."""

_MAX_TOKENS = 8
"""Larger steps take so long that launching them does not count, while each recording holds memory for all results."""


@dataclass(slots=True)
class _Recorded:
    graph: Graph
    hidden: torch.Tensor
    logits: torch.Tensor


class RecordedSteps:
    """Recordings by the shapes of steps.

    Args:
        is_on: whether anything is recorded.
    """

    def __init__(self, runtime: DeviceRuntime, *, is_on: bool) -> None:
        self._runtime = runtime
        self._is_on = is_on
        self._steps: dict[StepShape, _Recorded] = {}

    def run(self, shape: StepShape, compute: Compute) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states and logits of a step whose inputs are filled; the next step of its shape overwrites them."""
        if torch.autograd._profiler_enabled():
            return compute(shape)  # a profile shows operations, not recordings
        recorded = self._steps.get(shape)
        if recorded is not None:
            recorded.graph.replay()
            return recorded.hidden, recorded.logits
        if not self._is_on or shape.has_chunks or shape.num_tokens > _MAX_TOKENS:
            return compute(shape)
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []

        def work() -> tuple[torch.Tensor, ...]:
            found[:] = [compute(shape)]
            return tuple(tensor for tensor in found[0] if tensor is not None)

        with self._runtime.graph_capture() as graphs:
            graph, outputs = graphs.capture(work)
        if len(outputs) == 2:
            self._steps[shape] = _Recorded(graph, *outputs)
        return found[0]
