"""The tail of models that write: from hidden states to the next tokens."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.execution.forward import ForwardPass
from octavo.execution.prompt_logprobs import PromptLogprobs
from octavo.execution.results import HeldStep, SampledStep
from octavo.execution.tail import Computed
from octavo.kernels import StepShape, mask_logits, take_rows
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import NewRow, Plan, SamplingParams, Step
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.sampler import DrawOnDevice, Sampler, Samples

TokenMasks = NDArray[np.int32]
"""``[M, ceil(V / 32)]``, one bit per token, lowest bit first: whether the token is allowed."""


class SamplingTail:
    """Logits, masks, draws, log-probabilities.

    Args:
        draw_on_device: draws for batches that need no planning by the host; None if there is no such kernel.
    """

    def __init__(
        self,
        forward: ForwardPass,
        plan: Plan,
        vocab_size: int,
        processors: Sequence[LogitsProcessor] = (),
        draw_on_device: Callable[[SlotParameters, torch.Tensor], DrawOnDevice] | None = None,
    ) -> None:
        self._forward, self._device = forward, forward.device
        self._state, self._inputs = forward.state, forward.inputs
        self._sampler = Sampler(plan.max_num_seqs, vocab_size, forward.device, processors=list(processors))
        self._prompt_logprobs = PromptLogprobs(forward)
        self._on_device: DrawOnDevice | None = None
        self._logits_buffer: torch.Tensor | None = None
        if draw_on_device is not None:
            self._on_device = draw_on_device(self._sampler.parameters, self._inputs.drawn)
            # One buffer for all steps: otherwise each captured graph would keep its own.
            shape = (plan.max_num_seqs, vocab_size)
            self._logits_buffer = torch.zeros(shape, dtype=forward.dtype, device=forward.device)

    def take_changes(self, step: Step) -> None:
        """See :meth:`Tail.take_changes`."""
        for slot in step.freed_slots:
            self._sampler.remove(slot)
        for row in step.new_rows:
            self._sampler.add(row)
        self._prompt_logprobs.take_changes(step)

    def compute(self, hidden: torch.Tensor, shape: StepShape) -> torch.Tensor:
        """Logits of each row's last token, ``[rows, vocab]``; see :meth:`Tail.compute`."""
        num_rows = shape.num_rows
        last = take_rows(hidden, self._inputs.last_tokens[:num_rows]) if shape.has_chunks else hidden[:num_rows]
        if self._logits_buffer is None:
            return self._forward.logits(last)
        return self._forward.model.logits(last, self._logits_buffer[:num_rows])

    def draw(self, logits: torch.Tensor) -> None:
        """See :meth:`Tail.draw`; sampling parameters are read on the device."""
        assert self._on_device is not None, "only devices with such a kernel come here"
        self._on_device.sample(logits, self._state.row_slots, self._state.header, self._inputs.seq_lens)
        self._inputs.append(len(logits))

    def finish(self, step: Step, computed: Computed) -> SampledStep | HeldStep:
        """See :meth:`Tail.finish`; a step with ``masked_rows`` is held until it gets their masks."""
        if step.masked_rows is None:
            return self._finish(step, computed, None)
        return HeldStep(torch.inference_mode()(partial(self._finish, step, computed)))

    def warm_up(self) -> NewRow:
        """See :meth:`Tail.warm_up`."""
        if self._logits_buffer is not None:
            width = -(-self._logits_buffer.shape[1] // 32)
            self._mask(self._logits_buffer[:1], np.zeros(1, np.int64), np.full((1, width), -1, np.int32))
        return NewRow(0, [0, 0], 2, SamplingParams(temperature=1.0, max_tokens=1), 0, [], [])

    def _finish(self, step: Step, computed: Computed, masks: TokenMasks | None) -> SampledStep:
        logits = computed.logits
        assert logits is not None, "this tail computes logits"
        if masks is not None:
            assert step.masked_rows is not None
            self._mask(logits, step.masked_rows, masks)
        copies = HostCopies(self._device)
        num_rows = len(step.slots)
        rows = step.num_drawn.nonzero()[0]
        samples: Samples | None
        if self._on_device is not None and self._sampler.is_plain(step.slots[rows]):
            self._sampler.flush()
            if computed.redraw is not None:
                computed.redraw()
            else:
                self.draw(logits)
            samples = Samples(copies.add(self._inputs.new_tokens[:num_rows]), [])
            rows = np.arange(num_rows)
        else:
            samples = self._draw_planned(step, rows, logits).to_host(copies) if len(rows) else None
            self._inputs.append(num_rows)
        found = self._prompt_logprobs.collect(step, computed.hidden)
        prompt_logprobs = [(row, logprobs.to_host(copies)) for row, logprobs in found]
        copies.seal()
        return SampledStep(num_rows, rows, samples, copies, prompt_logprobs)

    def _draw_planned(self, step: Step, rows: NDArray[np.int64], logits: torch.Tensor) -> Samples:
        """Draw for requests whose parameters the host must plan for; rows that do not draw are not written."""
        num_rows = len(step.slots)
        slots, lengths = self._state.row_slots[:num_rows], self._inputs.seq_lens[:num_rows]
        drawn, logits = self._inputs.drawn[:num_rows], logits[:num_rows]
        index = None if len(rows) == num_rows else to_device(rows, self._device)
        if index is not None:
            slots, lengths, logits = slots[index], lengths[index], logits[index]
        longest = int((step.num_computed + step.num_new).max())
        slot_list = step.slots[rows].tolist()
        samples = self._sampler.sample(logits, slots.long(), lengths.long(), self._state.token_ids, slot_list, longest)
        if index is None:
            drawn.copy_(samples.token_ids)
        else:
            drawn[index] = samples.token_ids
        return samples

    def _mask(self, logits: torch.Tensor, rows: NDArray[np.int64], masks: TokenMasks) -> None:
        """Mask tokens that are not allowed in these rows of the logits."""
        mask_logits(logits, to_device(rows, self._device), to_device(masks, self._device))
