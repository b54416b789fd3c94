"""The sampler: logits in, one token per request out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.draw import DrawOnDevice, MakeDraw
from octavo.kernels.row_blocks import argmax
from octavo.platforms import runtime_of
from octavo.records import NAN_TOKEN, NewRow
from octavo.sampling import blocks, filters
from octavo.sampling.logprobs import LogprobTensors, listed_logprobs, token_logprobs
from octavo.sampling.masks import TokensAt
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.penalties import TokenCounts, count_tokens, penalise
from octavo.sampling.plan import Feature, Planner, RequestNeeds, SamplingPart, SamplingPlan, Subset
from octavo.sampling.processor_batch import ProcessorBatch
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.random import uniforms

_ALIGNED_ROWS = 16
"""16 rows of any tensor take a multiple of 16 bytes; kernels are compiled for such addresses."""


@dataclass(slots=True)
class Samples:
    """What one step drew.

    Attributes:
        token_ids: ``[N]`` int64 on the device; :data:`NAN_TOKEN` where the logits were not numbers or nothing was left
            to choose from.
        logprobs: log-probabilities for the rows that asked: (rows, values); those of a :data:`NAN_TOKEN` mean nothing.
    """

    token_ids: Tensor
    logprobs: list[tuple[list[int], LogprobTensors]]


class Sampler:
    """Draws the next token of each request of a step.

    A row's token depends on its logits, its parameters, its seed and its position, never on the other rows: no
    generator state, and no shortcut that another row's parameters would open or close.

    The order is vLLM's: allowed tokens, logit bias, bad words, min_tokens; custom processors; penalties; temperature;
    argmax-invariant processors; min-p, top-k, top-p; draw. Greedy rows stop after the penalties.

    Attributes:
        on_device: what draws without the host, unless there are custom processors; None for plain PyTorch.

    Args:
        max_num_seqs: requests are in slots 0 to ``max_num_seqs`` − 1.
        max_rows: most rows of a step; ``max_num_seqs`` unless requests draw at several places.
    """

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        *,
        processors: Sequence[LogitsProcessor] = (),
        draw_on_device: MakeDraw | None = None,
        max_rows: int | None = None,
    ) -> None:
        max_rows = max_rows or max_num_seqs
        rows_per_pass = min(max_rows, _rows_per_pass(runtime_of(device).pass_elements // vocab_size))
        self._vocab_size = vocab_size
        self.parameters = SlotParameters(max_num_seqs, device)
        self._counts = TokenCounts(max_num_seqs, vocab_size, device)
        self._needs: list[RequestNeeds | None] = [None] * max_num_seqs
        self._planned: set[int] = set()
        self._custom = ProcessorBatch(processors, device)
        self.on_device: DrawOnDevice | None = None
        if draw_on_device is not None:
            self.on_device = draw_on_device(self.parameters, max_rows, vocab_size)
            self._all_rows = torch.full((1,), max_rows, dtype=torch.int32, device=device)
        self._planner = Planner(
            vocab_size,
            device,
            max_rows if self._custom.has_processors else rows_per_pass,
            works_all=self._custom.has_processors or self.on_device is not None,
        )
        self._is_on_device = self.on_device is not None and not self._custom.has_processors
        self._plan: SamplingPlan | None = None
        self._work = torch.empty(rows_per_pass, vocab_size, dtype=torch.float32, device=device)
        self._spare = self._work if self._is_on_device else torch.empty_like(self._work)

    def add_row(self, row: NewRow) -> None:
        """Take in a request, whatever was in its slot before."""
        self.parameters.write(row)
        need = RequestNeeds.of(row, self._vocab_size)
        self._needs[row.slot] = need
        if Feature.PENALTIES in need.features:
            self._counts.write(row)
        if need.must_be_planned:
            self._planned.add(row.slot)
        else:
            self._planned.discard(row.slot)
        self._plan = None
        if self._custom.has_processors:
            self._custom.add_row(row)

    def is_plain(self, slots: NDArray[np.integer], num_drawn: NDArray[np.integer]) -> bool:
        """Whether ``on_device`` and parameters by slot are all that a step's rows need: nothing must be planned.

        Args:
            slots, num_drawn: ``[R]``, of each row; those that draw nothing need nothing.
        """
        return self._is_on_device and (not self._planned or self._planned.isdisjoint(slots[num_drawn > 0].tolist()))

    def flush(self) -> None:
        """Send the parameters and tokens of requests that were added."""
        self.parameters.flush()
        self._counts.flush()

    def remove(self, slot: int) -> None:
        """Forget the request in a slot, if there is one."""
        self._needs[slot] = None
        self._planned.discard(slot)
        self._plan = None
        self._custom.remove(slot)

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        lengths: Tensor,
        tokens_at: TokensAt,
        slot_list: list[int],
        drafts: Tensor | None = None,
    ) -> Samples:
        """Draw one token per row; :meth:`count` follows once it is known which of them stay.

        Args:
            logits: ``[N, V]`` of any float type, left as they are.
            slots: ``[N]`` integers, each row's slot.
            lengths: ``[N]`` integers, tokens of the request known before this one.
            tokens_at: reads known tokens.
            slot_list: ``slots`` on the host.
            drafts: ``[N, K]`` integers, drafts among the tokens before this one, −1 for none.
        """
        self.flush()
        plan = self._plan_for(slot_list)
        tokens = torch.empty(len(slot_list), dtype=torch.int64, device=logits.device)
        if plan.plain is not None:
            best, likeliest = argmax(plan.plain.take(logits))
            plan.plain.put(tokens, torch.where(_is_finite(best), likeliest, NAN_TOKEN))
        if self._custom.has_processors:
            self._custom.update(slots, lengths, tokens_at, slot_list)
        sample_part = self._sample_part_on_device if self._is_on_device else self._sample_part
        uniforms = self._uniforms(slots, lengths) if plan.parts and not self._is_on_device else lengths
        for part in plan.parts:
            rows = _Rows(
                part.rows.take(slots),
                part.rows.take(lengths),
                part.rows.take(uniforms),
                None if drafts is None else part.rows.take(drafts),
            )
            part.rows.put(tokens, sample_part(part, part.rows.take(logits), rows, tokens_at))
        return Samples(tokens, _logprobs(plan, logits, tokens))

    def count(self, slots: Tensor, token_ids: Tensor, num_tokens: Tensor) -> None:
        """Count the new tokens of a step that :meth:`sample` drew for; see :func:`count_tokens`."""
        if self._plan is not None and self._plan.is_penalised:
            count_tokens(self._counts.table, slots, token_ids, num_tokens)

    def warm_up(self, logits: Tensor, num_drafts: int) -> None:
        """Run the kernels that only some requests need, on ``[N, V]`` and to no effect that lasts."""
        zeros = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
        drafts = zeros.unsqueeze(1).repeat(1, num_drafts) if num_drafts else None
        tokens = zeros.long()
        token_logprobs(logits, tokens, 1)
        p, work = self.parameters, self._work[: len(logits)]
        penalise(logits, work, zeros, self._counts.table, p.repetition, p.frequency, p.presence, drafts)
        penalise(work, work, zeros, self._counts.table, p.repetition, p.frequency, p.presence, drafts)
        count_tokens(self._counts.table, zeros, zeros.unsqueeze(1).repeat(1, 1 + num_drafts), zeros)
        if self.on_device is not None:
            self.on_device.sample(work, zeros, zeros, zeros, tokens)

    def _plan_for(self, slot_list: list[int]) -> SamplingPlan:
        if self._plan is None or self._plan.slot_list != slot_list:
            needs = [need for slot in slot_list if (need := self._needs[slot]) is not None]
            assert len(needs) == len(slot_list), "a slot is sampled that holds no request"
            self._plan = self._planner.plan(slot_list, needs)
        return self._plan

    def _uniforms(self, slots: Tensor, lengths: Tensor) -> Tensor:
        """The random number of each row's next token, ``[N]`` float64."""
        p = self.parameters
        return uniforms(p.take(p.stream_key, slots), lengths - p.take(p.prompt_len, slots))

    def _sample_part(self, part: SamplingPart, logits: Tensor, rows: "_Rows", tokens_at: TokensAt) -> Tensor:
        """Draw for the rows of a part, ``[n]``; all arguments but ``tokens_at`` concern these rows only."""
        work, spare = self._buffers(part.rows.size)
        work.copy_(logits)
        largest = work.amax(-1)
        is_sound = _is_finite(largest)
        if part.is_edited or self._custom.has_processors:
            work = self._edit(part, work, rows, tokens_at)
            largest = work.amax(-1)
            is_sound &= _is_finite(largest)
        tokens = argmax(work)[1] if not part.draws_all else torch.empty_like(largest, dtype=torch.int64)
        if part.random is not None:
            part.random.put(tokens, self._draw(part, part.random, work, spare, largest, rows))
        return torch.where(is_sound, tokens, NAN_TOKEN)

    def _buffers(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Two float32 ``[num_rows, V]`` to write on; only custom processors need more rows than are kept ready."""
        if num_rows <= len(self._work):
            return self._work[:num_rows], self._spare[:num_rows]
        work = self._work.new_empty(num_rows, self._vocab_size)
        return work, torch.empty_like(work)

    def _edit(self, part: SamplingPart, logits: Tensor, rows: "_Rows", tokens_at: TokensAt) -> Tensor:
        """Everything that may change which token is the likeliest; the result may be ``logits`` itself."""
        if part.edits is not None:
            part.edits.apply(logits, rows.slots.long(), rows.lengths.long(), tokens_at)
        if self._custom.has_processors:
            logits = self._custom.apply_before(logits)
        if part.is_penalised:
            self._penalise(logits, logits, rows)
        return logits

    def _sample_part_on_device(self, part: SamplingPart, logits: Tensor, rows: "_Rows", tokens_at: TokensAt) -> Tensor:
        """:meth:`_sample_part` with the device's kernel."""
        assert self.on_device is not None
        work = self._work[: part.rows.size]
        if part.edits is not None:
            work.copy_(logits)
            is_sound = _is_finite(work.amax(-1))
            part.edits.apply(work, rows.slots.long(), rows.lengths.long(), tokens_at)
            logits = work.masked_fill_(~is_sound.unsqueeze(1), torch.nan)
        if part.is_penalised:
            self._penalise(logits, work, rows)
            logits = work
        tokens = torch.empty(part.rows.size, dtype=torch.int64, device=logits.device)
        self.on_device.sample(logits, rows.slots, self._all_rows, rows.lengths, tokens)
        return tokens

    def _penalise(self, logits: Tensor, out: Tensor, rows: "_Rows") -> None:
        p = self.parameters
        penalise(logits, out, rows.slots, self._counts.table, p.repetition, p.frequency, p.presence, rows.drafts)

    def _draw(
        self, part: SamplingPart, subset: Subset, logits: Tensor, spare: Tensor, largest: Tensor, rows: "_Rows"
    ) -> Tensor:
        """Draw for the random rows of a part, overwriting ``logits`` and ``spare``; ``largest`` is each row's logit."""
        p = self.parameters
        temperature = p.take(p.temperature, rows.slots)
        if self._custom.has_invariant:
            temperature = torch.where(temperature > 0, temperature, 1.0)
            logits = self._custom.apply_invariant(filters.scale(logits, largest, temperature))
            largest, temperature = logits.amax(-1), torch.ones_like(temperature)
        logits, slots = subset.take(logits), subset.take(rows.slots)
        weights = spare[: subset.size]
        filters.to_weights(logits, subset.take(largest), subset.take(temperature), out=weights)
        self._filter(part, weights, logits, slots)
        return blocks.pick(weights, subset.take(rows.uniforms))

    def _filter(self, part: SamplingPart, weights: Tensor, spare: Tensor, slots: Tensor) -> None:
        """Set the weights to zero that min-p, top-k and top-p rule out; rows and ``slots`` are the random ones."""
        p = self.parameters
        if part.has_min_p:
            filters.drop_below(weights, filters.min_p_least(weights, p.take(p.min_p, slots)), spare)
        if part.top_k is not None:
            chosen = part.top_k.take(weights)
            least = filters.top_k_least(chosen, p.take(p.top_k, part.top_k.take(slots)), part.largest_k)
            filters.drop_below(chosen, least, spare[: part.top_k.size])
            part.top_k.put(weights, chosen)
        if part.top_p is not None:
            chosen = part.top_p.take(weights)
            least = filters.top_p_least(chosen, p.take(p.top_p, part.top_p.take(slots)))
            filters.drop_below(chosen, least, spare[: part.top_p.size])
            part.top_p.put(weights, chosen)


@dataclass(slots=True, frozen=True)
class _Rows:
    """Some rows of a step: ``[n]`` slots, lengths, random numbers of their next tokens, and drafts ``[n, K]``."""

    slots: Tensor
    lengths: Tensor
    uniforms: Tensor
    drafts: Tensor | None


def _rows_per_pass(num_rows: int) -> int:
    """A number of rows close to the wanted one, such that passes start at aligned addresses if they are not tiny."""
    return num_rows - num_rows % _ALIGNED_ROWS if num_rows > _ALIGNED_ROWS else max(1, num_rows)


def _is_finite(largest: Tensor) -> Tensor:
    """Whether the largest value of a row is a number (two operations; ``isfinite`` takes five)."""
    return largest.abs() < torch.inf


def _logprobs(plan: SamplingPlan, logits: Tensor, tokens: Tensor) -> list[tuple[list[int], LogprobTensors]]:
    """Log-probabilities of the drawn tokens, for the rows that asked."""
    likeliest = [
        (rows, token_logprobs(subset.take(logits), subset.take(tokens).clamp(min=0), num_top))
        for num_top, rows, subset in plan.logprobs
    ]
    listed = [
        (rows, listed_logprobs(subset.take(logits), subset.take(tokens).clamp(min=0), listed))
        for listed, rows, subset in plan.listed
    ]
    return likeliest + listed
