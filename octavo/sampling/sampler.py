"""The sampler: logits in, one token per request out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.platforms import runtime_of
from octavo.platforms.transfer import HostCopies
from octavo.records import NAN_TOKEN, NewRow, TokenLogprobs
from octavo.sampling import blocks, filters
from octavo.sampling.logprobs import LogprobTensors, listed_logprobs, token_logprobs
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.penalties import apply_penalties
from octavo.sampling.plan import Part, Plan, Planner, RequestNeeds, Subset
from octavo.sampling.processor_batch import ProcessorBatch
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.random import uniforms


@dataclass(slots=True)
class Samples:
    """What one step drew.

    Attributes:
        token_ids: ``[N]`` int64 on the device; :data:`NAN_TOKEN` where the logits were not numbers or nothing was left
            to choose from.
        logprobs: log-probabilities for the rows that asked: (rows, values).
    """

    token_ids: Tensor
    logprobs: list[tuple[list[int], LogprobTensors]]

    def to_host(self, copies: HostCopies) -> "Samples":
        """Copies that may be read once ``copies`` have arrived."""
        logprobs = [(rows, found.to_host(copies)) for rows, found in self.logprobs]
        return Samples(copies.add(self.token_ids), logprobs)

    def read_logprobs(self) -> dict[int, TokenLogprobs]:
        """Log-probabilities by row, of the rows that asked and drew a token."""
        if not self.logprobs:
            return {}
        tokens = self.token_ids.tolist()
        return {
            row: values
            for rows, found in self.logprobs
            for row, values in zip(rows, found.read(), strict=True)
            if tokens[row] != NAN_TOKEN
        }


class DrawOnDevice(Protocol):
    """Draws for requests whose parameters by slot say all there is to know; see :meth:`Sampler.is_plain`."""

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor) -> None:
        """Draw one token per row.

        Args:
            logits: ``[R, V]``.
            slots: ``[≥ R]`` integers.
            counts: the step's real rows first, on the device.
            lengths: ``[≥ R]``, tokens of each request known before this one.
        """


class Sampler:
    """Draws the next token of each request of a step.

    A row's token depends on its logits, its parameters, its seed and its position, never on the other rows: no
    generator state, and no shortcut that another row's parameters would open or close.

    The order is vLLM's: allowed tokens, logit bias, bad words, min_tokens; custom processors; penalties; temperature;
    argmax-invariant processors; min-p, top-k, top-p; draw. Greedy rows stop after the penalties.
    """

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        *,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """Set up for requests in slots 0 to ``max_num_seqs`` − 1."""
        rows_per_pass = min(max_num_seqs, max(1, runtime_of(device).pass_elements // vocab_size))
        self._vocab_size = vocab_size
        self.parameters = SlotParameters(max_num_seqs, device)
        self._needs: list[RequestNeeds | None] = [None] * max_num_seqs
        self._planned: set[int] = set()
        self._custom = ProcessorBatch(processors, device)
        self._planner = Planner(vocab_size, device, rows_per_pass, works_all=self._custom.has_processors)
        self._plan: Plan | None = None
        self._work = torch.empty(rows_per_pass, vocab_size, dtype=torch.float32, device=device)
        self._spare = torch.empty_like(self._work)

    def add(self, row: NewRow) -> None:
        """Take in a request, whatever was in its slot before."""
        self.parameters.write(row)
        need = RequestNeeds.of(row, self._vocab_size)
        self._needs[row.slot] = need
        if need.must_be_planned:
            self._planned.add(row.slot)
        else:
            self._planned.discard(row.slot)
        self._plan = None
        if self._custom.has_processors:
            self._custom.add(row)

    def is_plain(self, slots: NDArray[np.integer]) -> bool:
        """Whether parameters by slot say all there is to know of these requests, so that nothing must be planned."""
        if self._custom.has_processors:
            return False
        return not self._planned or self._planned.isdisjoint(slots.tolist())

    def flush(self) -> None:
        """Send the parameters of requests that were added."""
        self.parameters.flush()

    def remove(self, slot: int) -> None:
        """Forget the request in a slot, if there is one."""
        self._needs[slot] = None
        self._planned.discard(slot)
        self._plan = None
        self._custom.remove(slot)

    def sample(
        self, logits: Tensor, slots: Tensor, lengths: Tensor, token_ids: Tensor, slot_list: list[int], longest: int
    ) -> Samples:
        """Draw one token per row.

        Args:
            logits: ``[N, V]`` of any float type, left as they are.
            slots: ``[N]`` int64, each row's slot.
            lengths: ``[N]`` int64, tokens of the request known before this one.
            token_ids: ``[S, L]`` int32, known tokens by slot; entries from a request's length on are ignored.
            slot_list: ``slots`` on the host.
            longest: at least the largest of ``lengths``.
        """
        self.flush()
        plan = self._plan_for(slot_list)
        tokens = torch.empty(len(slot_list), dtype=torch.int64, device=logits.device)
        if plan.plain is not None:
            best, likeliest = blocks.argmax(plan.plain.take(logits))
            plan.plain.put(tokens, torch.where(_is_finite(best), likeliest, NAN_TOKEN))
        if self._custom.has_processors:
            self._custom.update(slots, lengths, token_ids, slot_list)
        chances = self._uniforms(slots, lengths) if plan.parts else lengths
        for part in plan.parts:
            rows = _Rows(part.rows.take(slots), part.rows.take(lengths), part.rows.take(chances))
            part.rows.put(tokens, self._sample_part(part, part.rows.take(logits), rows, token_ids[:, :longest]))
        return Samples(tokens, _logprobs(plan, logits, tokens))

    def _plan_for(self, slot_list: list[int]) -> Plan:
        if self._plan is None or self._plan.slot_list != slot_list:
            needs = [need for slot in slot_list if (need := self._needs[slot]) is not None]
            assert len(needs) == len(slot_list), "a slot is sampled that holds no request"
            self._plan = self._planner.plan(slot_list, needs)
        return self._plan

    def _uniforms(self, slots: Tensor, lengths: Tensor) -> Tensor:
        """The random number of each row's next token, ``[N]`` float64."""
        p = self.parameters
        return uniforms(p.take(p.stream_key, slots), lengths - p.take(p.prompt_len, slots))

    def _sample_part(self, part: Part, logits: Tensor, rows: "_Rows", token_ids: Tensor) -> Tensor:
        """Draw for the rows of a part, ``[n]``; all arguments but the token matrix hold these rows only."""
        work, spare = self._buffers(part.rows.size)
        work.copy_(logits)
        largest = work.amax(-1)
        is_sound = _is_finite(largest)
        if part.is_edited or self._custom.has_processors:
            work = self._edit(part, work, spare, rows, token_ids)
            largest = work.amax(-1)
            is_sound &= _is_finite(largest)
        tokens = torch.empty_like(rows.slots) if part.draws_all else blocks.argmax(work)[1]
        if part.random is not None:
            part.random.put(tokens, self._draw(part, part.random, work, spare, largest, rows))
        return torch.where(is_sound, tokens, NAN_TOKEN)

    def _buffers(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Two float32 ``[num_rows, V]`` to write on; only custom processors need more rows than are kept ready."""
        if num_rows <= len(self._work):
            return self._work[:num_rows], self._spare[:num_rows]
        work = self._work.new_empty(num_rows, self._vocab_size)
        return work, torch.empty_like(work)

    def _edit(self, part: Part, logits: Tensor, spare: Tensor, rows: "_Rows", token_ids: Tensor) -> Tensor:
        """Everything that may change which token is the likeliest; the result may be ``logits`` itself."""
        if part.edits is not None:
            part.edits.apply(logits, rows.slots, rows.lengths, token_ids)
        if self._custom.has_processors:
            logits = self._custom.apply_before(logits)
        if part.penalised is not None:
            self._penalise(part.penalised, logits, spare, rows, token_ids)
        return logits

    def _penalise(self, subset: Subset, logits: Tensor, spare: Tensor, rows: "_Rows", token_ids: Tensor) -> None:
        p = self.parameters
        apply_penalties(
            logits,
            torch.arange(subset.size, device=logits.device) if subset.index is None else subset.index,
            subset.take(rows.slots),
            subset.take(rows.lengths),
            token_ids,
            p.prompt_len,
            p.repetition,
            p.frequency,
            p.presence,
            spare,
        )

    def _draw(
        self, part: Part, subset: Subset, logits: Tensor, spare: Tensor, largest: Tensor, rows: "_Rows"
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
        return blocks.pick(weights, subset.take(rows.chances))

    def _filter(self, part: Part, weights: Tensor, spare: Tensor, slots: Tensor) -> None:
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
    """Some rows of a step: ``[n]`` slots, lengths, and random numbers of their next tokens."""

    slots: Tensor
    lengths: Tensor
    chances: Tensor


def _is_finite(largest: Tensor) -> Tensor:
    """Whether the largest value of a row is a number (two operations; ``isfinite`` takes five)."""
    return largest.abs() < torch.inf


def _logprobs(plan: Plan, logits: Tensor, tokens: Tensor) -> list[tuple[list[int], LogprobTensors]]:
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
