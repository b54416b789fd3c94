"""The scheduler: continuous batching with chunked prefill under a token budget.

Requests come in; :meth:`Scheduler.schedule` makes steps, :meth:`Scheduler.update` turns their results into outputs.
There is no prefill phase and no decode phase. Every request has tokens, some of them computed; a step lets requests
catch up, running ones first, within the budget. When blocks run out, the request that loses least is preempted: its
blocks are freed, and it is computed again later.

Read on: :mod:`~octavo.scheduling.lifecycle` moves requests between waiting, running and finished;
:mod:`~octavo.scheduling.rows` holds the state that changes with every token; :mod:`~octavo.scheduling.running`
schedules running requests and preempts; :mod:`~octavo.scheduling.completion` turns results into outputs.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import compress, repeat

import numpy as np
from numpy.typing import NDArray

from octavo.cache import BlockListener, CacheManager
from octavo.records import (
    NAN_TOKEN,
    STEP_SIZES,
    EngineOutput,
    EngineRequest,
    EngineStats,
    Plan,
    Step,
    StepOutputs,
    StepResult,
    as_token_ids,
)
from octavo.sampling.rules import BoundRow, TokenRule
from octavo.scheduling.batch import StepBatch
from octavo.scheduling.completion import NAN_ERROR, RowResult
from octavo.scheduling.lifecycle import Lifecycle
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, Status
from octavo.scheduling.rows import Counts, Mask, Slots, StepPart


class Scheduler:
    """Owns all requests of an engine; uses no tensors.

    :meth:`schedule` may be called again before the results of earlier steps arrive (up to the plan's
    ``num_steps_ahead``); :meth:`update` takes results in the order of their steps.

    Args:
        listeners: told what enters and leaves the prefix cache.
    """

    def __init__(self, plan: Plan, listeners: Sequence[BlockListener] = ()) -> None:
        self.plan = plan
        # Blocks behind a window stay until it is known which drafts were accepted.
        max_chunk = min(plan.token_budget + (plan.num_steps_ahead + 1) * plan.num_drafts, plan.max_model_len)
        self.cache = CacheManager(plan.num_blocks, plan.block_size, plan.groups, max_chunk, listeners)
        self.stats = EngineStats(num_blocks=plan.num_blocks - 1, step_sizes=[0] * (len(STEP_SIZES) + 1))
        self.stats.acceptances = [0] * (1 + plan.num_drafts) if plan.num_drafts else []
        self._lifecycle = Lifecycle(plan, self.cache, self.stats)
        self._running = self._lifecycle.running
        self._rows = self._running.rows
        self._in_flight: deque[StepBatch] = deque()
        self._last_batch: StepBatch | None = None

    @property
    def requests(self) -> dict[str, Request]:
        """All unfinished requests, by id."""
        return self._lifecycle.requests

    @property
    def waiting(self) -> WaitingQueue:
        """Requests that wait."""
        return self._lifecycle.waiting

    def add_request(self, source: EngineRequest, rules: Sequence[TokenRule] = ()) -> None:
        """Queue a request, with the rules for its tokens.

        Raises:
            InvalidRequestError: its id is in use, its prompt leaves no room for a token, or it can never fit the cache.
        """
        self._lifecycle.add_request(source, rules)

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests; unknown ids are ignored.

        Returns:
            An output with finish reason ``abort`` for each that was unfinished.
        """
        unique = dict.fromkeys(request_ids)
        found = [self.requests[request_id] for request_id in unique if request_id in self.requests]
        for request in found:
            self._finish(request)
        return [
            EngineOutput(request.request_id, finish_reason="abort", times=request.completion.times) for request in found
        ]

    def close(self) -> None:
        """Hold back requests that arrive from now on, until :meth:`open`."""
        self._lifecycle.close()

    def open(self) -> None:
        """Admit all requests again."""
        self._lifecycle.open()

    @property
    def is_done_before_close(self) -> bool:
        """Whether all requests that arrived before :meth:`close` have ended."""
        return self._lifecycle.is_done_before_close

    def preempt_all(self, *, device_is_new: bool) -> None:
        """Preempt all running requests and clear the prefix cache; no step may be in flight.

        Args:
            device_is_new: the runner was replaced and has no state of the requests.
        """
        assert not self._in_flight, "results of steps would find no request"
        self._lifecycle.preempt_all()
        self._last_batch = None
        self._running.changes.block_updates.clear()
        if device_is_new:
            self._running.take_changes()
        is_cleared = self.cache.pool.clear_index()
        assert is_cleared, "nobody holds blocks"

    def forget_steps(self) -> None:
        """Drop the steps in flight, whose results will not arrive, then :meth:`preempt_all`."""
        self._in_flight.clear()
        for request in self.requests.values():
            request.num_steps_in_flight = 0
        self.preempt_all(device_is_new=True)

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot, in the order of their admission."""
        return self._rows.running()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.requests)

    @property
    def num_in_flight(self) -> int:
        """Number of steps whose results have not arrived."""
        return len(self._in_flight)

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache; returns False, and does nothing, while a request holds blocks."""
        return self.cache.pool.clear_index()

    def schedule(self) -> Step | None:
        """Make the next step; None if nothing can run before results arrive."""
        part, preempted = self._lifecycle.schedule_running()
        for request in preempted:
            request.num_steps_in_flight = sum(request in batch.requests for batch in self._in_flight)
        if len(self.waiting) and not preempted:
            admitted = self._lifecycle.admit(
                self._running.budget(part.num_scheduled_tokens) - int(part.num_scheduled_tokens.sum())
            )
            part = StepPart.joined([part, *admitted])
        return self._make_step(part) if len(part.slots) else None

    def bound_rows(self, step: Step) -> list[BoundRow]:
        """The ``masked_rows`` of the newest step; the results of all other steps must have arrived."""
        assert step.masked_rows is not None and len(self._in_flight) == 1, "tokens that masks follow from are missing"
        batch = self._in_flight[-1]
        return [self._bound_row(batch.requests[row], int(batch.num_drawn[row])) for row in step.masked_rows.tolist()]

    def _bound_row(self, request: Request, num_drawn: int) -> BoundRow:
        if request.status is Status.FINISHED:
            return BoundRow([], num_drawn)
        rules = [rule for rule in request.completion.rules if rule.is_binding]
        num_drafts = min(int(self._rows.num_drafts[request.slot]), num_drawn - 1)
        return BoundRow(rules, num_drawn, self._rows.drafts[request.slot, :num_drafts].tolist())

    def update(self, result: StepResult) -> StepOutputs:
        """Process the results of the oldest step in flight."""
        batch = self._in_flight.popleft()
        token_ids = np.asarray(result.token_ids, np.int32)
        num_tokens = None if result.num_tokens is None else np.asarray(result.num_tokens, np.int32)
        # It is not known which blocks contain NaN: sliding windows and preemptions may have freed some. So after the
        # first NaN, every block is zeroed before reuse, at no cost to engines that never see one. A NaN row does not
        # count if the request's own parameters may have masked all tokens.
        is_nan = token_ids == NAN_TOKEN
        if np.count_nonzero(is_nan):
            for row in (is_nan.reshape(len(batch.slots), -1).any(1) & batch.draws).nonzero()[0].tolist():
                self._running.wipes_blocks |= not batch.requests[row].completion.may_run_dry
        self._take_prompt_logprobs(batch, result)
        is_here, is_taken = batch.is_row, batch.draws
        if batch.source is not self._rows.order:  # some may have left since the step was made
            is_here = self._rows.slot_generations[batch.slots] == batch.slot_generations
            is_taken = is_here & batch.draws
        if num_tokens is not None:
            self._settle(batch, num_tokens, is_here.nonzero()[0], result)
        outputs = self._take_tokens(batch, token_ids, num_tokens, is_taken, result)
        if np.count_nonzero(is_here) < len(is_here):
            outputs.others += self._take_late_tokens(batch, token_ids, num_tokens, ~is_here, result)
        self._refresh_stats()
        return outputs

    def _settle(self, batch: StepBatch, num_tokens: Counts, here: NDArray[np.intp], result: StepResult) -> None:
        """Take in how many drafts of the given rows were accepted, and which wait now."""
        slots = batch.slots[here]
        self._count_drafts(slots, batch.num_drawn[here], num_tokens[here])
        self._rows.settle(slots, batch.num_drawn[here], num_tokens[here])
        if result.drafts is not None and result.num_drafts is not None:
            self._rows.drafts[slots] = np.asarray(result.drafts)[here]
            self._rows.num_drafts[slots] = np.asarray(result.num_drafts)[here]

    def _make_step(self, part: StepPart) -> Step:
        self.stats.num_steps += 1
        batch = self._last_batch
        # The same array object means the same rows as last time, each with its newest token and all drafts.
        if batch is None or part.slots is not batch.source:
            self._last_batch = batch = StepBatch.of(part, self._rows, self.plan.decode_len)
        self._in_flight.append(batch)
        changes = self._running.take_changes()
        masked_rows = None
        if self._rows.num_bound:
            rows = (self._rows.is_bound[batch.slots] & batch.draws).nonzero()[0]
            masked_rows = rows if len(rows) else None
        step = Step(
            step_id=self.stats.num_steps,
            slots=batch.step_slots,
            num_computed=part.num_computed[batch.order],
            num_scheduled_tokens=batch.num_scheduled_tokens,
            num_drawn=batch.num_drawn,
            new_rows=changes.new_rows,
            freed_slots=changes.freed_slots,
            block_updates=changes.block_updates,
            blocks_to_wipe=changes.blocks_to_wipe,
            masked_rows=masked_rows,
            decode_len=self.plan.decode_len,
        )
        self._count_step(step)
        return step

    def _count_step(self, step: Step) -> None:
        """Count prompt tokens and generated tokens, as vLLM does: the chunk that ends a prompt also yields a token."""
        num_tokens = step.num_tokens
        if step.num_decodes < len(step.slots):
            num_tokens += int(np.count_nonzero(step.num_drawn[step.num_decodes :]))
        self.stats.num_step_tokens += num_tokens
        self.stats.step_sizes[bisect_left(STEP_SIZES, num_tokens)] += 1

    def _count_drafts(self, slots: Slots, num_drawn: Counts, num_tokens: Counts) -> None:
        """Count drafts that a step has verified, before the next ones of its rows are known."""
        num_drafts = np.minimum(self._rows.num_drafts[slots], num_drawn - 1)
        had_drafts = num_drafts > 0
        self.stats.num_draft_tokens += int(num_drafts[had_drafts].sum())
        counts = np.bincount(num_tokens[had_drafts] - 1, minlength=len(self.stats.acceptances))
        self.stats.acceptances = (counts + self.stats.acceptances).tolist()

    def _take_tokens(
        self,
        batch: StepBatch,
        token_ids: NDArray[np.int32],
        num_tokens: Counts | None,
        is_taken: Mask,
        result: StepResult,
    ) -> StepOutputs:
        """Append tokens to requests that still occupy the slots that they had when the step was made."""
        now = time.time()
        slots, request_ids = batch.slots, batch.request_ids
        rows = is_taken.nonzero()[0]
        if len(rows) < len(slots):
            slots, token_ids, num_tokens = slots[rows], token_ids[rows], _some(num_tokens, rows)
            request_ids = list(compress(request_ids, is_taken.tolist()))
        is_special = self._rows.append(slots, token_ids, num_tokens, now)
        if not np.count_nonzero(is_special):
            return self._plain_outputs(request_ids, token_ids, num_tokens, rows, result)
        special = is_special.nonzero()[0]
        is_plain = ~is_special
        plain_ids = list(compress(request_ids, is_plain.tolist()))
        outputs = self._plain_outputs(
            plain_ids, token_ids[is_plain], _some(num_tokens, is_plain), rows[is_plain], result
        )
        lengths = self._rows.num_known[slots[special]].tolist()
        new_tokens = _token_lists(token_ids[special], _some(num_tokens, special))
        for row, new, length in zip(rows[special].tolist(), new_tokens, lengths, strict=True):
            outputs.others.append(self._take_result(batch.requests[row], new, length, result, row, now))
        return outputs

    def _plain_outputs(
        self,
        request_ids: list[str],
        token_ids: NDArray[np.int32],
        num_tokens: Counts | None,
        rows: NDArray[np.intp],
        result: StepResult,
    ) -> StepOutputs:
        """Outputs of rows that got nothing but tokens and their log-probabilities."""
        outputs = StepOutputs(request_ids)
        if num_tokens is None:
            outputs.token_ids = token_ids.tolist()
        else:
            are_there = np.arange(token_ids.shape[1]) < num_tokens[:, None]
            outputs.token_ids, outputs.num_tokens = token_ids[are_there].tolist(), num_tokens.tolist()
        self.stats.generation_tokens += len(outputs.token_ids)
        if result.logprobs:
            counts = outputs.num_tokens or repeat(1)
            for index, (row, count) in enumerate(zip(rows.tolist(), counts, strict=False)):
                if (found := result.logprobs.get(row)) is not None and found.sampled:
                    outputs.logprobs[index] = found.sampled[:count]
        return outputs

    def _take_late_tokens(
        self,
        batch: StepBatch,
        token_ids: NDArray[np.int32],
        num_tokens: Counts | None,
        has_left: Mask,
        result: StepResult,
    ) -> list[EngineOutput]:
        """Append tokens to requests that were preempted after the step was made; drop tokens of ended requests."""
        now = time.time()
        outputs = []
        left = has_left.nonzero()[0]
        new_tokens = _token_lists(token_ids[left], _some(num_tokens, left))
        for row, new in zip(left.tolist(), new_tokens, strict=True):
            request = batch.requests[row]
            if request.status is Status.FINISHED:
                continue
            request.num_steps_in_flight -= 1
            if batch.draws[row]:
                request.token_ids = np.append(request.token_ids, as_token_ids(new))
                outputs.append(self._take_result(request, new, len(request.token_ids), result, row, now))
        return outputs

    def _take_result(
        self, request: Request, token_ids: list[int], num_tokens: int, result: StepResult, row: int, now: float
    ) -> EngineOutput:
        """The output for a row whose tokens may be the first or the last, or advance rules."""
        of_row = result.logprobs.get(row), result.pooled.get(row), result.routed.get(row)
        found = RowResult(token_ids, num_tokens, *of_row)
        output = request.completion.take(found, now)
        self._count_output(request, output)
        if output.error is not None:
            # Blocks whose content may be invalid leave the prefix cache.
            self.cache.distrust(request.cache)
            self._finish(request, is_trusted=False)
        elif output.finish_reason is not None:
            self._cut(request, len(token_ids) - len(output.new_token_ids))
            self._finish(request)
        elif request.status is Status.RUNNING:
            self._rows.note_output(request)
        return output

    def _cut(self, request: Request, num_tokens: int) -> None:
        """Drop tokens that were accepted behind the end of the text."""
        if num_tokens and request.status is Status.RUNNING:
            self._rows.cut(request.slot, num_tokens)
        elif num_tokens:
            request.token_ids = request.token_ids[:-num_tokens]

    def _count_output(self, request: Request, output: EngineOutput) -> None:
        self.stats.generation_tokens += len(output.new_token_ids)
        if output.num_cached_tokens is not None:
            self.stats.prompt_tokens += request.num_prompt
            self.stats.cached_prompt_tokens += output.num_cached_tokens
        if output.error == NAN_ERROR:
            self.stats.num_corrupted += 1

    def _take_prompt_logprobs(self, batch: StepBatch, result: StepResult) -> None:
        for row, logprobs in result.logprobs.items():
            request = batch.requests[row]
            if logprobs.prompt and request.status is not Status.FINISHED:
                request.completion.note_prompt_logprobs(logprobs.prompt)

    def _finish(self, request: Request, *, is_trusted: bool = True) -> None:
        # The rows change; and an idle engine must not keep a reference to the request and its inputs.
        self._last_batch = None
        self._lifecycle.finish_request(request, is_trusted=is_trusted)

    def _refresh_stats(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self._rows), len(self.waiting)
        stats.num_free_blocks = self.cache.pool.num_free
        stats.cache_usage = self.cache.pool.usage

    def current_stats(self) -> EngineStats:
        """Current statistics."""
        self._refresh_stats()
        return self.stats


def _some(num_tokens: Counts | None, rows: NDArray[np.intp] | Mask) -> Counts | None:
    """The numbers of tokens of some rows; None if all rows have one."""
    return None if num_tokens is None else num_tokens[rows]


def _token_lists(token_ids: NDArray[np.int32], num_tokens: Counts | None) -> list[list[int]]:
    """The tokens of each row."""
    if num_tokens is None:
        return [[token_id] for token_id in token_ids.tolist()]
    return [row[:count] for row, count in zip(token_ids.tolist(), num_tokens.tolist(), strict=True)]
