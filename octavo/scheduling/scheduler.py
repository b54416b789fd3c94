"""The scheduler: continuous batching with chunked prefill under a token budget.

Requests come in; :meth:`Scheduler.schedule` makes steps, :meth:`Scheduler.update` turns their results into outputs.
There is no prefill phase and no decode phase. Every request has tokens, some of them computed; a step lets requests
catch up, running ones first, within the budget. When blocks run out, the request that loses least is preempted: its
blocks are freed, and it is computed again later.

Read on: :mod:`~octavo.scheduling.rows` holds the state that changes with every token; :mod:`~octavo.scheduling.running`
schedules running requests and preempts; :mod:`~octavo.scheduling.admission` admits waiting ones.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from octavo.cache import CacheManager
from octavo.records import (
    NAN_TOKEN,
    STEP_SIZES,
    EngineOutput,
    EngineRequest,
    EngineStats,
    Plan,
    RowLogprobs,
    Step,
    StepOutputs,
    StepResult,
)
from octavo.sampling.grammar.constraint import Constraint
from octavo.sampling.grammar.fill import fill_masks
from octavo.scheduling.admission import Admission
from octavo.scheduling.batch import Batch
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, Status
from octavo.scheduling.rows import Mask, Part
from octavo.scheduling.running import Running

NAN_ERROR = "The model's output was not a number; the request was ended, others go on."
NO_TOKEN_ERROR = (
    "No token is left that all of the request's limits allow (its grammar, allowed_token_ids, bad_words), "
    "or the model's output was not a number; the request was ended, others go on."
)
BROKEN_GRAMMAR_ERROR = "The text left its grammar; the request was ended, others go on."


class Scheduler:
    """Owns all requests of an engine; uses no tensors.

    :meth:`schedule` may be called again before the results of earlier steps arrive (up to the plan's
    ``num_steps_ahead``); :meth:`update` takes results in the order of their steps.

    Attributes:
        requests: all unfinished requests, by id.
        waiting: those that wait.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        max_chunk = min(plan.token_budget, plan.max_model_len)
        self.cache = CacheManager(plan.num_blocks, plan.block_size, plan.groups, max_chunk)
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(by_priority=plan.scheduling_policy == "priority")
        self.stats = EngineStats(num_blocks=plan.num_blocks - 1, step_sizes=[0] * (len(STEP_SIZES) + 1))
        self._running = Running(plan, self.cache, self.waiting)
        self._rows = self._running.rows
        self._admission = Admission(plan, self.cache, self._running, self.waiting, self.requests, self.stats)
        self._under_way: deque[Batch] = deque()
        self._last_batch: Batch | None = None

    def add(self, source: EngineRequest, constraint: Constraint | None = None) -> None:
        """Queue a request, with the constraint on its tokens if there is one.

        Raises:
            InvalidRequestError: its id is in use, its prompt leaves no room for a token, or it can never fit the cache.
        """
        self.requests[source.request_id] = self._admission.receive(source, constraint)

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests; unknown ids are ignored.

        Returns:
            An output with finish reason ``abort`` for each that was unfinished.
        """
        unique = dict.fromkeys(request_ids)
        found = [self.requests[request_id] for request_id in unique if request_id in self.requests]
        for request in found:
            self._finish(request)
        return [EngineOutput(request.request_id, finish_reason="abort", times=request.times) for request in found]

    def close(self) -> None:
        """Hold back requests that arrive from now on, until :meth:`open`."""
        self._admission.close()

    def open(self) -> None:
        """Admit all requests again."""
        self._admission.open()

    @property
    def is_done_before_close(self) -> bool:
        """Whether all requests that arrived before :meth:`close` have ended."""
        return all(self._admission.is_late(request) for request in self.requests.values())

    def preempt_all(self, *, device_is_new: bool) -> None:
        """Preempt all running requests and clear the prefix cache; no step may be in flight.

        Args:
            device_is_new: the runner was replaced and has no state of the requests.
        """
        assert not self._under_way, "results of steps would find no request"
        for request in self.running:
            self._running.leave(request)
            self._wait_again(request)
        self._last_batch = None
        self._running.changes.block_updates.clear()
        if device_is_new:
            self._running.take_changes()
        is_cleared = self.cache.pool.clear_index()
        assert is_cleared, "nobody holds blocks"

    def forget_steps(self) -> None:
        """Drop the steps in flight, whose results will not arrive, then :meth:`preempt_all`."""
        self._under_way.clear()
        for request in self.requests.values():
            request.num_steps_under_way = 0
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
        return len(self._under_way)

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache; returns False, and does nothing, while a request holds blocks."""
        return self.cache.pool.clear_index()

    def schedule(self) -> Step | None:
        """Make the next step; None if nothing can run before results arrive."""
        budget = self.plan.token_budget
        part, preempted = self._running.go_on(budget)
        for request in preempted:
            self._wait_again(request)
        if len(self.waiting) and not preempted:
            admitted = self._admission.admit(budget - int(part.num_new.sum()))
            part = Part.joined([part, *admitted])
        return self._make_step(part) if len(part.slots) else None

    def masks(self, step: Step, width: int) -> NDArray[np.int32]:
        """Masks of allowed tokens for ``masked_rows`` of the newest step; the results of all others must have arrived.

        Returns:
            ``[M, width]``, one bit per token, lowest bit first.
        """
        assert step.masked_rows is not None and len(self._under_way) == 1, "tokens that masks follow from are missing"
        masks = np.full((len(step.masked_rows), width), -1, np.int32)
        requests = self._under_way[-1].requests
        constraints, bound = [], []
        for mask, row in zip(masks, step.masked_rows.tolist(), strict=True):
            request = requests[row]
            if request.status is not Status.FINISHED and request.constraint is not None:
                constraints.append(request.constraint)
                bound.append(mask)
        fill_masks(constraints, bound)
        return masks

    def update(self, result: StepResult) -> StepOutputs:
        """Process the results of the oldest step in flight."""
        batch = self._under_way.popleft()
        token_ids = np.asarray(result.token_ids, np.int32)
        # It is not known which blocks contain NaN: sliding windows and preemptions may have freed some. So after the
        # first NaN, every block is zeroed before reuse, at no cost to engines that never see one. A NaN row does not
        # count if the request's own parameters may have masked all tokens.
        for row in ((token_ids == NAN_TOKEN) & batch.samples).nonzero()[0].tolist():
            self._running.wipes_blocks |= not batch.requests[row].may_run_dry
        self._take_prompt_logprobs(batch, result)
        is_here = self._rows.tenures[batch.slots] == batch.tenures
        outputs = self._take_tokens(batch, token_ids, is_here & batch.samples, result)
        if np.count_nonzero(is_here) < len(is_here):
            outputs.others += self._take_late_tokens(batch, token_ids, ~is_here, result)
        self._refresh_stats()
        return outputs

    def _make_step(self, part: Part) -> Step:
        self.stats.num_steps += 1
        batch = self._last_batch
        # The same array object means the same rows as last time, with one token each.
        if batch is None or part.slots is not batch.source:
            self._last_batch = batch = Batch.of(part, self._rows)
        self._under_way.append(batch)
        changes = self._running.take_changes()
        masked_rows = None
        if self._rows.num_bound:
            rows = (self._rows.is_bound[batch.slots] & batch.samples).nonzero()[0]
            masked_rows = rows if len(rows) else None
        step = Step(
            step_id=self.stats.num_steps,
            slots=batch.step_slots,
            num_computed=part.num_computed[batch.order],
            num_new=batch.num_new,
            samples=batch.samples,
            new_rows=changes.new_rows,
            freed_slots=changes.freed_slots,
            block_updates=changes.block_updates,
            blocks_to_wipe=changes.blocks_to_wipe,
            masked_rows=masked_rows,
        )
        self._count_step(step)
        return step

    def _count_step(self, step: Step) -> None:
        """Count prompt tokens and generated tokens, as vLLM does: the chunk that ends a prompt also yields a token."""
        num_tokens = step.num_tokens + int(np.count_nonzero(step.samples[step.num_decodes :]))
        self.stats.num_step_tokens += num_tokens
        self.stats.step_sizes[bisect_left(STEP_SIZES, num_tokens)] += 1

    def _wait_again(self, request: Request) -> None:
        """Put a preempted request back into the queue."""
        request.status = Status.WAITING
        request.num_steps_under_way = sum(request in batch.requests for batch in self._under_way)
        request.times.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.push(request)

    def _take_tokens(
        self, batch: Batch, token_ids: NDArray[np.int32], is_taken: Mask, result: StepResult
    ) -> StepOutputs:
        """Append tokens to requests that still occupy the slots that they had when the step was made."""
        now = time.time()
        slots, request_ids = batch.slots, batch.request_ids
        rows = is_taken.nonzero()[0]
        if len(rows) < len(slots):
            slots, token_ids = slots[rows], token_ids[rows]
            request_ids = list(compress(request_ids, is_taken.tolist()))
        is_special = self._rows.append(slots, token_ids, now)
        special = is_special.nonzero()[0]
        if not len(special):
            self.stats.generation_tokens += len(rows)
            return StepOutputs(request_ids, token_ids.tolist())
        is_plain = ~is_special
        outputs = StepOutputs(list(compress(request_ids, is_plain.tolist())), token_ids[is_plain].tolist())
        self.stats.generation_tokens += len(outputs.token_ids)
        lengths = self._rows.num_known[slots[special]].tolist()
        for row, token_id, length in zip(rows[special].tolist(), token_ids[special].tolist(), lengths, strict=True):
            outputs.others.append(self._take_result(batch.requests[row], token_id, length, result, row, now))
        return outputs

    def _take_late_tokens(
        self, batch: Batch, token_ids: NDArray[np.int32], has_left: Mask, result: StepResult
    ) -> list[EngineOutput]:
        """Append tokens to requests that were preempted after the step was made; drop tokens of ended requests."""
        now = time.time()
        outputs = []
        for row in has_left.nonzero()[0].tolist():
            request = batch.requests[row]
            if request.status is Status.FINISHED:
                continue
            request.num_steps_under_way -= 1
            if batch.samples[row]:
                token_id = int(token_ids[row])
                request.token_ids = np.append(request.token_ids, token_ids[row])
                outputs.append(self._take_result(request, token_id, len(request.token_ids), result, row, now))
        return outputs

    def _take_result(
        self, request: Request, token_id: int, num_tokens: int, result: StepResult, row: int, now: float
    ) -> EngineOutput:
        if request.source.pooling is None or token_id == NAN_TOKEN:
            return self._take_token(request, token_id, num_tokens, result.logprobs.get(row), now)
        self.stats.prompt_tokens += request.num_prompt
        self.stats.cached_prompt_tokens += request.num_cached
        self._finish(request)
        return EngineOutput(
            request.request_id,
            finish_reason="stop",
            num_cached_tokens=request.num_cached,
            times=request.times,
            pooled=result.pooled[row],
        )

    def _take_token(
        self, request: Request, token_id: int, num_tokens: int, logprobs: RowLogprobs | None, now: float
    ) -> EngineOutput:
        """The output for a token that may be the first or the last, or has log-probabilities."""
        if token_id == NAN_TOKEN:
            self.stats.num_corrupted += not request.may_run_dry
            return self._fail(request, NO_TOKEN_ERROR if request.may_run_dry else NAN_ERROR)
        constraint = request.constraint
        if constraint is not None and (constraint.error is not None or not constraint.accept(token_id)):
            return self._fail(request, constraint.error or BROKEN_GRAMMAR_ERROR)
        self.stats.generation_tokens += 1
        times = request.times
        times.last_token = now
        is_first = times.first_token == 0.0
        reason, stop_reason = request.finish_reason_after(token_id, num_tokens)
        if reason is None and request.constraint is not None and request.constraint.is_finished:
            reason = "stop"
        if request.repetition is not None and request.repetition.push(token_id) and num_tokens >= request.min_len:
            reason = reason or "repetition"
        output = EngineOutput(request.request_id, [token_id], finish_reason=reason, stop_reason=stop_reason)
        if logprobs is not None and logprobs.sampled is not None:
            output.logprobs = [logprobs.sampled]
        if is_first:
            times.first_token = now
            output.num_cached_tokens = request.num_cached
            self.stats.prompt_tokens += request.num_prompt
            self.stats.cached_prompt_tokens += request.num_cached
        if is_first or reason is not None:
            output.times = times
        if request.prompt_logprobs:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []
        if reason is not None:
            self._finish(request)
        elif request.status is Status.RUNNING:
            self._rows.note_first_token(request)
        return output

    def _take_prompt_logprobs(self, batch: Batch, result: StepResult) -> None:
        for row, logprobs in result.logprobs.items():
            request = batch.requests[row]
            if request.status is not Status.FINISHED:
                request.prompt_logprobs += logprobs.prompt
                request.num_logprobs_done += len(logprobs.prompt)

    def _fail(self, request: Request, error: str) -> EngineOutput:
        """End one request with an error; its blocks are removed from the prefix cache."""
        self.cache.distrust(request.cache)
        self._finish(request, is_trusted=False)
        return EngineOutput(request.request_id, finish_reason="error", error=error, times=request.times)

    def _finish(self, request: Request, *, is_trusted: bool = True) -> None:
        was_waiting = request.status is Status.WAITING
        if request.status is Status.RUNNING:
            self._running.leave(request, is_trusted=is_trusted)
        request.status = Status.FINISHED
        # The rows have changed; and an idle engine must not keep a reference to the request and its inputs.
        self._last_batch = None
        if was_waiting:
            self.waiting.discard(request)
        elif is_trusted:
            self._admission.note_end(request)
        self.waiting.charge(request.source.client, 0, len(request.token_ids) - request.num_prompt)
        del self.requests[request.request_id]

    def _refresh_stats(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self._rows), len(self.waiting)
        stats.num_free_blocks = self.cache.pool.num_free
        stats.cache_usage = self.cache.pool.usage

    def current_stats(self) -> EngineStats:
        """Current statistics."""
        self._refresh_stats()
        return self.stats
