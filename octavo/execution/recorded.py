"""Small decode steps, recorded when they first occur and replayed from then on.

For devices that record at the cost of a step (:attr:`octavo.platforms.Platform.records_steps`); graphs that are worth
capturing ahead of time are in ``graphs.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from octavo.execution.tail import Computed
from octavo.kernels import StepShape
from octavo.platforms import DeviceRuntime, Graph
from octavo.platforms.runtime import Captured

Compute = Callable[[StepShape], tuple[torch.Tensor, torch.Tensor | None]]
"""Runs a step of a shape from device state; returns hidden states and logits."""

Draw = Callable[[torch.Tensor], None]
"""Draws from logits into device state."""

_MAX_TOKENS = 8
"""Larger steps take so long that launching them does not count, while each recording holds memory for all results."""


@dataclass(slots=True)
class _Recorded:
    forward: Graph
    hidden: torch.Tensor
    logits: torch.Tensor
    sample: Graph | None = None


class RecordedSteps:
    """Recordings by the shapes of steps.

    Args:
        is_on: whether anything is recorded.
    """

    def __init__(self, runtime: DeviceRuntime, draw: Draw, *, is_on: bool) -> None:
        self._runtime, self._draw = runtime, draw
        self._is_on = is_on
        self._steps: dict[StepShape, _Recorded] = {}

    def run(self, shape: StepShape, compute: Compute) -> Computed:
        """Run a step from device state; the next one of its shape overwrites the results."""
        if torch.autograd._profiler_enabled():
            return Computed(*compute(shape))  # a profile shows operations, not recordings
        recorded = self._steps.get(shape)
        if recorded is not None:
            recorded.forward.replay()
            return Computed(recorded.hidden, recorded.logits, partial(self._redraw, recorded))
        if not self._is_on or shape.has_chunks or shape.num_tokens > _MAX_TOKENS:
            return Computed(*compute(shape))
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []

        def work() -> tuple[torch.Tensor, ...]:
            found[:] = [compute(shape)]
            return tuple(tensor for tensor in found[0] if tensor is not None)

        graph, outputs = self._capture(work)
        if len(outputs) == 2:
            self._steps[shape] = _Recorded(graph, *outputs)
        return Computed(*found[0])

    def _redraw(self, recorded: _Recorded) -> None:
        if recorded.sample is not None:
            recorded.sample.replay()
            return

        def work() -> tuple[torch.Tensor, ...]:
            self._draw(recorded.logits)
            return ()

        recorded.sample, _ = self._capture(work)

    def _capture(self, work: Captured) -> tuple[Graph, tuple[torch.Tensor, ...]]:
        with self._runtime.graph_capture() as graphs:
            return graphs.capture(work)
