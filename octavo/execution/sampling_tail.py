"""The tail of models that write: from hidden states to the next tokens."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.execution.draws import Draws, drawn_places
from octavo.execution.forward import ForwardPass
from octavo.execution.prompt_logprobs import PromptLogprobs
from octavo.execution.results import HeldStep, SampledStep
from octavo.execution.tail import Computed
from octavo.kernels import StepShape, gather_rows, mask_logits
from octavo.kernels.draw import MakeDraw
from octavo.platforms import runtime_of
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import NewRow, Plan, SamplingParams, Step, as_token_ids
from octavo.sampling.logprobs import LogprobTensors
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.sampler import Sampler, Samples

TokenMasks = NDArray[np.int32]
"""``[M, ceil(V / 32)]``, one bit per token, lowest bit first: whether the token is allowed."""


class SamplingTail:
    """Logits, masks, draws, log-probabilities.

    Args:
        draws: where tokens are drawn.
        draw_on_device: see :class:`Sampler`; None if there is no such kernel.
    """

    def __init__(
        self,
        forward: ForwardPass,
        draws: Draws,
        plan: Plan,
        vocab_size: int,
        processors: Sequence[LogitsProcessor] = (),
        draw_on_device: MakeDraw | None = None,
    ) -> None:
        self._forward, self._device, self._draws = forward, forward.device, draws
        self._runtime = runtime_of(forward.device)
        self._sampler = Sampler(
            plan.max_num_seqs,
            vocab_size,
            forward.device,
            processors=list(processors),
            draw_on_device=draw_on_device,
            max_rows=len(draws.drawn),
        )
        self._prompt_logprobs = PromptLogprobs(forward)
        self._logits_buffer: torch.Tensor | None = None
        if draw_on_device is not None and not self._runtime.is_host:
            # One buffer for all steps: otherwise each captured graph would keep its own.
            shape = (len(draws.drawn), vocab_size)
            self._logits_buffer = torch.zeros(shape, dtype=forward.dtype, device=forward.device)

    def take_changes(self, step: Step) -> None:
        """See :meth:`Tail.take_changes`."""
        for slot in step.freed_slots:
            self._sampler.remove(slot)
        for row in step.new_rows:
            self._sampler.add_row(row)
        self._prompt_logprobs.take_changes(step)
        self._forward.routing.take_changes(step)

    def compute(self, hidden: torch.Tensor, shape: StepShape) -> torch.Tensor:
        """Logits at each place where a token is drawn, ``[rows · W, vocab]``; see :meth:`Tail.compute`."""
        places = self._draws.places(shape)
        chosen = hidden[: shape.num_rows] if places is None else gather_rows(hidden, places)
        if self._logits_buffer is None:
            return self._forward.logits(chosen)
        return self._forward.model.logits(chosen, self._logits_buffer[: len(chosen)])

    def prepare_draw(self, step: Step) -> bool:
        """See :meth:`Tail.prepare_draw`."""
        return step.masked_rows is None and self._prepare_plain_draw(step)

    def draw(self, logits: torch.Tensor) -> None:
        """See :meth:`Tail.draw`; sampling parameters are read on the device."""
        draws, on_device = self._draws, self._sampler.on_device
        assert on_device is not None, "only devices with such a kernel come here"
        on_device.sample(logits, draws.slots, draws.counts, draws.lengths, draws.drawn)
        draws.append(len(logits) // draws.width)

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
            self._sampler.warm_up(self._logits_buffer[:1], self._draws.width - 1)
        return NewRow(0, as_token_ids([0, 0]), 2, SamplingParams(temperature=1.0, max_tokens=1), 0, [], [])

    def _finish(self, step: Step, computed: Computed, masks: TokenMasks | None) -> SampledStep:
        logits = computed.logits
        assert logits is not None, "this tail computes logits"
        if masks is not None:
            assert step.masked_rows is not None
            self._mask(logits, drawn_places(step, step.masked_rows, self._draws.width), masks)
        copies = HostCopies(self._runtime)
        sampled_logprobs: list[tuple[list[int], LogprobTensors]] = []
        if not computed.is_drawn:
            sampled_logprobs = self._draw(step, computed, logits, copies)
        new_tokens = self._draws.to_host(len(step.slots))
        found = self._prompt_logprobs.collect(step, computed.hidden)
        prompt_logprobs = [(row, logprobs.to_host(copies)) for row, logprobs in found]
        routed = self._forward.routing.collect(step, copies)
        copies.seal()
        return SampledStep(new_tokens, copies, sampled_logprobs, prompt_logprobs, routed)

    def _draw(
        self, step: Step, computed: Computed, logits: torch.Tensor, copies: HostCopies
    ) -> list[tuple[list[int], LogprobTensors]]:
        """Draw and append; returns log-probabilities, see :class:`SampledStep`."""
        if self._prepare_plain_draw(step):
            if computed.redraw is not None:
                computed.redraw()
            else:
                self.draw(logits)
            return []
        logprobs = []
        rows, num_rows = step.num_drawn.nonzero()[0], len(step.slots)
        if len(rows):
            drawn_rows = rows if self._draws.width == 1 else np.repeat(rows, step.num_drawn[rows])
            for indices, values in self._draw_planned(step, rows, logits).logprobs:
                logprobs.append((drawn_rows[indices].tolist(), values.to_host(copies)))
        self._draws.append(num_rows)
        self._sampler.count(*self._draws.kept(num_rows))
        return logprobs

    def _prepare_plain_draw(self, step: Step) -> bool:
        """:meth:`prepare_draw` for a step whose masks are applied by then."""
        is_plain = self._sampler.is_plain(step.slots, step.num_drawn)
        if is_plain:
            self._sampler.flush()
        return is_plain

    def _draw_planned(self, step: Step, rows: NDArray[np.int64], logits: torch.Tensor) -> Samples:
        """Draw for requests whose parameters the host must plan for; other places are not written."""
        draws, num_places = self._draws, len(step.slots) * self._draws.width
        places = drawn_places(step, rows, draws.width)
        slots, lengths, drawn = draws.slots[:num_places], draws.lengths[:num_places], draws.drawn[:num_places]
        logits = logits[:num_places]
        index = None if len(places) == num_places else to_device(places, self._device)
        if index is not None:
            slots, lengths, logits = slots[index], lengths[index], logits[index]
        drafts = draws.drafts_before(len(step.slots))
        if index is not None and drafts is not None:
            drafts = drafts[index]
        slot_list = np.repeat(step.slots[rows], step.num_drawn[rows]).tolist()
        samples = self._sampler.sample(logits, slots, lengths, self._forward.state.tokens_at, slot_list, drafts)
        if index is None:
            drawn.copy_(samples.token_ids)
        else:
            drawn[index] = samples.token_ids
        return samples

    def _mask(self, logits: torch.Tensor, rows: NDArray[np.int64], masks: TokenMasks) -> None:
        """Mask tokens that are not allowed in these rows of the logits."""
        mask_logits(logits, to_device(rows, self._device), to_device(masks, self._device))
