"""The GPU runner: state, inputs and sampling stay on the device, and the host only queues work.

A :class:`Step` comes in; a :class:`SampledStep` goes out, whose tokens arrive asynchronously. Read on in ``graphs.py``
(captured steps), ``inputs.py`` (step inputs on the device) and ``state.py`` (batch state).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from octavo.execution.graphs import CapturedStep, StepGraphs, decode_sizes, ladder
from octavo.execution.inputs import InputBuffers, shape_of
from octavo.execution.results import SampledStep
from octavo.execution.runner import ModelRunner, TokenMasks
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionBackend, AttentionInputs, StepShape, take_rows
from octavo.kernels.triton.compile import compile_together
from octavo.layers.attention import StepAttention
from octavo.models.base import CausalLM
from octavo.platforms import runtime_of
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import BlockUpdate, NewRow, Plan, SamplingParams, Step
from octavo.sampling.device_sampler import DeviceSampler
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.sampler import Samples

_MEDIUM_STEP = 2048
_TOKEN_UNIT = 128
"""Token counts of steps without a graph are rounded up to a multiple of this: the tile size of large GEMMs."""


class DeviceRunner(ModelRunner):
    """Queues steps: a captured graph if one fits, else single launches."""

    def __init__(
        self,
        model: CausalLM,
        config: ModelConfig,
        plan: Plan,
        dtype: torch.dtype,
        device: torch.device,
        backend: AttentionBackend,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        super().__init__(model, config, plan, dtype, device, backend, processors)
        self.inputs = InputBuffers(plan, device)
        # One logits buffer for all steps: otherwise each captured graph would keep its own.
        self._logits_buffer = torch.zeros(plan.max_num_seqs, config.vocab_size, dtype=dtype, device=device)
        self.device_sampler = DeviceSampler(self.sampler.parameters, self.inputs.sampled)
        self._runtime = runtime_of(device)
        self._graphs = StepGraphs(self._runtime)
        self._shapes = ladder(plan.max_num_seqs, plan.max_num_batched_tokens, plan.num_exact_graphs)
        self._row_sizes = decode_sizes(plan.max_num_seqs, plan.num_exact_graphs)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile all kernels and run every kind of step once, the largest included, so that no request waits.

        The batch state has no rows, so nothing is stored.
        """
        with compile_together(self.device):
            self._run_all_shapes()
        self._run_all_shapes()
        # One request through the whole path, so that nothing is loaded or allocated for the first real one. What it
        # writes to slot 0 and block 0 is never read.
        row = NewRow(0, [0, 0], 2, SamplingParams(temperature=1.0, max_tokens=1), 0, [], [])
        zero, two = np.zeros(1, np.int32), np.full(1, 2, np.int32)
        step = Step(0, zero, zero, two, np.ones(1, np.int32), [row], block_updates=[BlockUpdate(0, 0, 0, [0])])
        sampled = self.execute(step)
        assert isinstance(sampled, SampledStep), "the step has no masked rows"
        sampled.result()
        self.sampler.remove(0)

    def _run_all_shapes(self) -> None:
        for shape in (*eager_shapes(self.plan), *self._shapes):
            self._sample_and_append(self._forward_shape(shape)[1])
        width = -(-self._logits_buffer.shape[1] // 32)
        self._mask(self._logits_buffer[:1], np.zeros(1, np.int64), np.full((1, width), -1, np.int32))

    @torch.inference_mode()
    def capture(self, *, show_progress: bool = False) -> int:
        """Capture the steps worth capturing, after :meth:`warm_up`; returns their number.

        Args:
            show_progress: show a progress bar on a terminal if the capture takes long.
        """
        self._graphs.capture(self._shapes, self._forward_shape, self._sample_and_append, show_progress=show_progress)
        self._runtime.synchronize()
        return len(self._shapes)

    def _run(self, step: Step) -> Callable[[TokenMasks | None], SampledStep]:
        shape = shape_of(step)
        captured = None if self.prompt_vectors.concern(step) else self._graphs.find(shape)
        if captured is not None:
            captured.forward.replay()
            hidden, logits = captured.hidden, captured.logits
        else:
            with self.prompt_vectors.put_in_place(step):
                hidden, logits = self._forward_shape(self._common_shape(shape))
        return partial(self._draw_from, step, shape.num_rows, captured, hidden, logits)

    def _common_shape(self, shape: StepShape) -> StepShape:
        """The next larger of a few common sizes.

        The vendor's library has a kernel for nearly every number of rows, and the driver synchronises the device when
        one is used for the first time.
        """
        num_rows = next(size for size in self._row_sizes if size >= shape.num_rows)
        if not shape.has_chunks:
            return replace(shape, num_rows=num_rows, num_tokens=num_rows)
        num_tokens = -(-shape.num_tokens // _TOKEN_UNIT) * _TOKEN_UNIT
        num_tokens = min(num_tokens, self.plan.max_num_batched_tokens)
        return replace(shape, num_rows=num_rows, num_tokens=max(num_tokens, num_rows))

    def _draw_from(
        self,
        step: Step,
        num_rows: int,
        captured: CapturedStep | None,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        masks: TokenMasks | None,
    ) -> SampledStep:
        sampling = step.num_drawn.nonzero()[0]
        samples_alone = self.sampler.is_plain(step.slots[sampling])
        copies = HostCopies(self.device)
        if masks is not None:
            assert step.masked_rows is not None
            self._mask(logits, step.masked_rows, masks)
        if samples_alone:
            self.sampler.flush()
            if captured is not None:
                captured.sample.replay()
            else:
                self._sample_and_append(logits)
            samples = Samples(copies.add(self.inputs.new_tokens[:num_rows]), [])
            sampling = np.arange(num_rows)
        else:
            samples = self._sample_with_host(step, sampling, logits, num_rows).to_host(copies)
        return self._finish(step, sampling, samples, hidden, copies)

    def _forward_shape(self, shape: StepShape) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states ``[tokens, hidden]`` and logits ``[rows, vocab]`` of the step described by device state."""
        inputs, num_tokens, num_rows = self.inputs, shape.num_tokens, shape.num_rows
        inputs.fill(self.state, shape)
        attention = self._attention(shape)
        hidden = self.model(inputs.token_ids[:num_tokens], inputs.positions[:num_tokens], attention)
        last = take_rows(hidden, inputs.last_tokens[:num_rows]) if shape.has_chunks else hidden
        return hidden, self.model.logits(last, self._logits_buffer[:num_rows])

    def _attention(self, shape: StepShape) -> StepAttention:
        rows = self.inputs.rows(self.state)
        plans = []
        for group, window in enumerate(self.windows):
            attention = AttentionInputs(
                self.state.block_tables[group],
                self.state.row_slots[: shape.num_rows],
                self.inputs.slot_mapping[group, : shape.num_tokens],
                [],
                [],
                self.plan.block_size,
                self.num_kv_heads,
                window,
                rows,
                shape,
            )
            plans.append(self.backend.plan(attention, self.dtype))
        return StepAttention(self.backend, self.kv_caches, [plans[group] for group in self.group_of_layer])

    def _sample_and_append(self, logits: torch.Tensor) -> None:
        """Draw one token per row; sampling parameters are read on the device."""
        num_rows = len(logits)
        self.device_sampler.sample(logits, self.state.row_slots, self.state.header, self.inputs.seq_lens)
        self.inputs.append(self.state, num_rows)

    def _sample_with_host(self, step: Step, sampling: np.ndarray, logits: torch.Tensor, num_rows: int) -> Samples:
        """Draw for requests whose parameters the host must plan for; rows that do not sample are not written."""
        rows = to_device(sampling, self.device)
        slots = self.state.row_slots[:num_rows][rows].long()
        lengths = self.inputs.seq_lens[:num_rows][rows].long()
        samples = self._draw(step, sampling, logits[rows], slots, lengths)
        self.inputs.sampled[rows] = samples.token_ids
        self.inputs.append(self.state, num_rows)
        return samples


def eager_shapes(plan: Plan) -> list[StepShape]:
    """Representative steps with long chunks, largest first; kernels choose their tiles by a step's size and kind."""
    most = plan.max_num_batched_tokens
    sizes = ((most, False), (min(most, _MEDIUM_STEP), True))
    return [
        StepShape(min(plan.max_num_seqs, tokens), tokens, tokens, True, True, is_fresh) for tokens, is_fresh in sizes
    ]
