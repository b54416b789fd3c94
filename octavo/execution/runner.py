"""The runner: a step in, its results out, on any device.

It is made of parts, chosen once at start: the forward pass with device state and inputs (``forward.py``, ``state.py``,
``inputs.py``), the sizes that steps are rounded to (``sizes.py``), captured steps where the platform has graphs
(``graphs.py``), and a tail that samples or pools (``sampling_tail.py``, ``pooling_tail.py``). On asynchronous devices
the host only queues work.
"""

import numpy as np
import torch

from octavo.execution.forward import ForwardPass
from octavo.execution.graphs import StepGraphs
from octavo.execution.inputs import shape_of
from octavo.execution.prompt_embeds import PromptVectors
from octavo.execution.recorded import RecordedSteps
from octavo.execution.results import HeldStep, PendingStep
from octavo.execution.sizes import StepSizes
from octavo.execution.tail import Computed, Tail
from octavo.kernels import CompileOnly, LaunchedKernels, StepShape
from octavo.models.base import few_layers
from octavo.platforms import runtime_of
from octavo.platforms.transfer import to_device
from octavo.records import BlockUpdate, NewRow, Step


class ModelRunner:
    """Runs steps: a captured graph if one fits, else single launches.

    Args:
        records: whether small steps are captured when they first occur.
    """

    def __init__(self, forward: ForwardPass, tail: Tail, sizes: StepSizes, *, records: bool = False) -> None:
        self.forward = forward
        self.sizes = sizes
        self._tail = tail
        self._runtime = runtime_of(forward.device)
        self._graphs = StepGraphs(self._runtime)
        self._rehearsed: dict[StepShape, LaunchedKernels] = {}
        self._recorded = RecordedSteps(self._runtime, tail.draw, is_on=records)
        self._prompt_vectors = PromptVectors(forward.model, forward.dtype, forward.device)

    def execute(self, step: Step) -> PendingStep | HeldStep:
        """Run one step; on asynchronous devices, queue it."""
        computed = self._recorded.run_again(step)
        if computed is not None:
            return self._tail.finish(step, computed)
        with torch.inference_mode():
            self._take_changes(step)
            return self._tail.finish(step, self._compute(step))

    @torch.inference_mode()
    def rehearse(self, compile_only: CompileOnly) -> None:
        """See :meth:`octavo.execution.build.Runner.rehearse`.

        Most models need all of their kernels in the first layers, so those come first: then the kernels compile while
        the whole model is rehearsed, which also allocates what layers keep.
        """
        shapes = [*self.sizes.single, *self.sizes.captured]
        with few_layers(self.forward.model), compile_only():
            self._run_single()
            for shape in self.sizes.captured:
                self._run_size(shape)
        for shape in shapes:
            with compile_only() as self._rehearsed[shape]:
                self._run_size(shape)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the largest steps once, so that no request waits.

        The batch state has no rows, so nothing is stored. Steps to capture run with the capture.
        """
        row = self._run_single()
        if row is None:
            return
        # One request through the whole path, so that nothing is loaded or allocated for the first real one. What it
        # writes to slot 0 and block 0 is never read.
        none, zero, one = np.zeros(0, np.int32), np.zeros(1, np.int32), np.ones(1, np.int32)
        step = Step(0, zero, zero, 2 * one, one, [row], block_updates=[BlockUpdate(0, 0, 0, [0])])
        pending = self.execute(step)
        assert not isinstance(pending, HeldStep), "the step has no masked rows"
        pending.result()
        self._tail.take_changes(Step(0, none, none, none, none, freed_slots=[0]))

    def _run_single(self) -> NewRow | None:
        for shape in self.sizes.single:
            self._run_size(shape)
        return self._tail.warm_up()

    def _run_size(self, shape: StepShape) -> None:
        _, logits = self._compute_shape(shape)
        if logits is not None:
            self._tail.draw(logits)

    @torch.inference_mode()
    def capture(self, *, show_progress: bool = False) -> int:
        """Capture the steps worth capturing, those first whose kernels are compiled; returns their number.

        Args:
            show_progress: show a progress bar on a terminal if the capture takes long.
        """
        self._graphs.capture(
            self.sizes.captured,
            self._compute_drawing,
            self._tail.draw,
            is_ready=lambda shape: shape not in self._rehearsed or self._rehearsed[shape].are_ready(),
            show_progress=show_progress,
        )
        self._rehearsed.clear()
        self._runtime.synchronize()
        return len(self.sizes.captured)

    def _take_changes(self, step: Step) -> None:
        self._tail.take_changes(step)
        self._prompt_vectors.take_changes(step)
        if step.blocks_to_wipe:
            self.forward.wipe(to_device(np.array(step.blocks_to_wipe, np.int64), self.forward.device))
        self.forward.state.apply(step)

    def _compute(self, step: Step) -> Computed:
        shape = shape_of(step)
        has_vectors = self._prompt_vectors.concern(step)
        captured = None if has_vectors else self._graphs.find(shape)
        if captured is not None:
            captured.forward.replay()
            return Computed(captured.hidden, captured.logits, redraw=captured.sample.replay)
        shape = self.sizes.rounded(shape)
        if not has_vectors:
            draws = self._tail.prepare_draw(step)
            may_repeat = draws and self.forward.state.is_settled
            return self._recorded.run(shape, self._compute_shape, draws=draws, rows=step.rows if may_repeat else None)
        with self._prompt_vectors.put_in_place(step):
            return Computed(*self._compute_shape(shape))

    def _compute_shape(self, shape: StepShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states, and logits if the tail has any, of the step described by device state."""
        self.forward.inputs.fill(shape)
        hidden = self.forward.run(shape)
        return hidden, self._tail.compute(hidden, shape)

    def _compute_drawing(self, shape: StepShape) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, logits = self._compute_shape(shape)
        assert logits is not None, "only tails that draw have captured steps"
        return hidden, logits
