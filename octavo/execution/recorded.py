"""Small decode steps, recorded when they first occur and replayed from then on.

For devices that record at the cost of a step (:attr:`octavo.platforms.Platform.records_steps`); graphs that are worth
capturing ahead of time are in ``graphs.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.execution.tail import Computed
from octavo.kernels import StepShape
from octavo.platforms import DeviceRuntime, Graph
from octavo.records import Step
from octavo.records.step import StepRows

Compute = Callable[[StepShape], tuple[torch.Tensor, torch.Tensor | None]]
"""Runs a step of a shape from device state; returns hidden states and logits."""

Draw = Callable[[torch.Tensor], None]
"""Draws from logits into device state."""

_MAX_TOKENS = 64
"""Larger steps take so long that launching their operations does not count."""


@dataclass(slots=True)
class _Recorded:
    graph: Graph
    computed: Computed


class RecordedSteps:
    """Recordings by the shapes of steps, and by whether tokens are drawn as well.

    Args:
        is_on: whether anything is recorded.
    """

    def __init__(self, runtime: DeviceRuntime, draw: Draw, *, is_on: bool) -> None:
        self._runtime, self._draw = runtime, draw
        self._is_on = is_on
        self._memory = runtime.graph_memory()
        self._steps: dict[tuple[StepShape, bool], _Recorded] = {}
        self._last: tuple[_Recorded, StepRows] | None = None

    def run_again(self, step: Step) -> Computed | None:
        """Run a step that only continues the last one, whose device state is ready; None if it is another."""
        last, self._last = self._last, None
        if last is None or not step.continues(last[1]) or torch.autograd._profiler_enabled():
            return None
        self._last = last
        last[0].graph.replay()
        return last[0].computed

    def run(self, shape: StepShape, compute: Compute, *, draws: bool, rows: StepRows | None = None) -> Computed:
        """Run a step from device state; the next one overwrites the results.

        Args:
            draws: also draw tokens and append them.
            rows: the step's rows, if it leaves the device state ready for the next step of the same ones.
        """
        recorded = self._steps.get((shape, draws))
        # A profile shows operations, not recordings.
        is_profiled = torch.autograd._profiler_enabled()
        if recorded is not None and not is_profiled:
            recorded.graph.replay()
            if rows is not None:
                self._last = recorded, rows
            return recorded.computed
        if is_profiled or not self._is_on or shape.has_chunks or shape.num_tokens > _MAX_TOKENS:
            return self._run(shape, compute, draws=draws)
        computed: list[Computed] = []

        def work() -> tuple[torch.Tensor, ...]:
            computed[:] = [self._run(shape, compute, draws=draws)]
            return tuple(tensor for tensor in (computed[0].hidden, computed[0].logits) if tensor is not None)

        with self._runtime.graph_capture(self._memory) as graphs:
            graph, _ = graphs.capture(work)
        self._steps[shape, draws] = _Recorded(graph, computed[0])
        return computed[0]

    def _run(self, shape: StepShape, compute: Compute, *, draws: bool) -> Computed:
        hidden, logits = compute(shape)
        if draws:
            assert logits is not None, "tokens are drawn from logits"
            self._draw(logits)
        return Computed(hidden, logits, is_drawn=draws)
