"""Which tokens run next: continuous batching with chunked prefill under a token budget.

There is no prefill phase and no decode phase. Every request has tokens and has some of them computed;
a step lets requests catch up, running ones first, within the budget. When blocks run out, the request
that loses least is preempted: its blocks go back, and it is computed again later.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from octavo.cache import CacheManager, PrefixHasher, RequestCache
from octavo.errors import InvalidRequestError
from octavo.records import (
    NAN_TOKEN,
    BlockUpdate,
    EngineOutput,
    EngineRequest,
    EngineStats,
    NewRow,
    Plan,
    Step,
    StepResult,
)
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, Status

NAN_ERROR = "The model's output was not a number; the request was ended, others go on."


@dataclass(slots=True)
class _Row:
    """A request's part in a step."""

    request: Request
    num_new: int
    samples: bool


class Scheduler:
    """Owns all requests of an engine; knows no tensors.

    :meth:`schedule` may be called again before the results of earlier steps are in (as far as the plan's
    ``num_steps_ahead`` goes); :meth:`update` takes results in the order of their steps.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        max_chunk = min(plan.max_num_batched_tokens, plan.max_model_len)
        self.cache = CacheManager(plan.num_blocks, plan.block_size, plan.groups, max_chunk)
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(by_priority=plan.scheduling_policy == "priority")
        self.running: list[Request] = []
        self.stats = EngineStats(num_blocks=plan.num_blocks - 1)
        self._free_slots = list(range(plan.max_num_seqs - 1, -1, -1))
        self._freed_slots: list[int] = []
        self._blocks_to_wipe: list[int] = []
        self._wipes_blocks = False
        self._in_flight: deque[list[_Row]] = deque()
        self._num_arrived = 0

    def add(self, source: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: its id is in use, its prompt does not leave room, or it can never fit the cache.
        """
        if source.request_id in self.requests:
            raise InvalidRequestError(f"The request id {source.request_id!r} is already in use.", "request_id")
        max_len = self._max_len(source)
        if not self.cache.fits(max_len):
            raise InvalidRequestError(
                f"The request may grow to {max_len} tokens, more than the cache's {self.plan.num_blocks - 1} blocks of "
                f"{self.plan.block_size} tokens hold; lower max_tokens or give the engine more cache memory."
            )
        params = source.params
        request = Request(
            source=source,
            order=self._num_arrived,
            cache=self._new_cache(source),
            token_ids=source.prompt_token_ids + source.output_token_ids,
            stop_token_ids=frozenset(params.stop_token_ids or ()),
            eos_token_ids=frozenset(() if params.ignore_eos else source.eos_token_ids),
            max_len=max_len,
        )
        request.times.queued = time.time()
        self._num_arrived += 1
        self.requests[source.request_id] = request
        self.waiting.push(request)

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests; unknown ids are ignored.

        Returns:
            An output with finish reason ``abort`` for each that was alive.
        """
        unique = dict.fromkeys(request_ids)
        found = [self.requests[request_id] for request_id in unique if request_id in self.requests]
        for request in found:
            self._finish(request)
        return [EngineOutput(request.request_id, finish_reason="abort", times=request.times) for request in found]

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is alive."""
        return bool(self.requests)

    @property
    def num_in_flight(self) -> int:
        """Steps whose results are not in."""
        return len(self._in_flight)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; refused (False) while a request holds blocks."""
        return self.cache.pool.clear_index()

    def schedule(self) -> Step | None:
        """Choose what runs next; None if nothing can run before results come in."""
        budget = self.plan.max_num_batched_tokens
        rows: list[_Row] = []
        updates: list[BlockUpdate] = []
        new_rows: list[NewRow] = []
        num_preemptions = self.stats.num_preemptions
        budget -= self._schedule_running(budget, rows, updates)
        for row in rows:
            self._publish(row.request)
        if num_preemptions == self.stats.num_preemptions:
            self._schedule_waiting(budget, rows, updates, new_rows)
        if not rows:
            return None
        rows.sort(key=lambda row: row.num_new > 1)
        self._in_flight.append(rows)
        return self._make_step(rows, updates, new_rows)

    def update(self, result: StepResult) -> list[EngineOutput]:
        """Take in the results of the oldest step under way."""
        rows = self._in_flight.popleft()
        outputs = []
        now = time.time()
        for index, row in enumerate(rows):
            output = self._update_row(row, index, result, now)
            if output is not None:
                outputs.append(output)
        self._refresh_stats()
        return outputs

    def _schedule_running(self, budget: int, rows: list[_Row], updates: list[BlockUpdate]) -> int:
        """Let running requests go on; returns the tokens taken from the budget."""
        taken = 0
        index = 0
        while index < len(self.running) and taken < budget:
            request = self.running[index]
            num_new = self._num_schedulable(request, budget - taken)
            if num_new == 0:
                index += 1
                continue
            if not self._grow(request, num_new, updates):
                victim = self._choose_victim()
                if victim is None:
                    # Alone, a request always fits (see add); what it waits for are results of steps under way.
                    index += 1
                    continue
                position = self.running.index(victim)
                taken -= self._preempt(victim, rows, updates)
                index -= position < index
                continue
            rows.append(self._advance(request, num_new))
            taken += num_new
            index += 1
        return taken

    def _schedule_waiting(
        self, budget: int, rows: list[_Row], updates: list[BlockUpdate], new_rows: list[NewRow]
    ) -> None:
        """Admit waiting requests in order while slots, blocks and budget last."""
        held_back: list[Request] = []
        while budget > 0 and self._free_slots:
            request = self.waiting.pop()
            if request is None:
                break
            if request.num_steps_under_way or self._waits_for_leader(request):
                held_back.append(request)
                continue
            num_new = self._admit(request, budget, updates)
            if num_new == 0:
                held_back.append(request)
                break
            new_rows.append(self._new_row(request))
            rows.append(self._advance(request, num_new))
            self._publish(request)
            budget -= num_new
        for request in held_back:
            self.waiting.push(request)

    def _num_schedulable(self, request: Request, budget: int) -> int:
        """Tokens of a running request that can go into this step."""
        if request.num_tokens >= request.max_len and request.num_pending:
            return 0  # the last token it may have is under way
        return min(request.num_tokens - request.num_computed, budget)

    def _advance(self, request: Request, num_new: int) -> _Row:
        """Count the tokens as computed, from the scheduler's point of view."""
        request.num_computed += num_new
        samples = request.num_computed == request.num_tokens
        request.num_pending += samples
        request.num_steps_under_way += 1
        return _Row(request, num_new, samples)

    def _publish(self, request: Request) -> None:
        """Let others find the blocks that this step fills; steps run in order, so they are full when read."""
        known = min(request.num_computed, len(request.token_ids))
        self.cache.publish(request.cache, request.token_ids, known)

    def _grow(self, request: Request, num_new: int, updates: list[BlockUpdate]) -> bool:
        self.cache.drop_unseen(request.cache, request.num_computed)
        added = self.cache.grow(request.cache, request.num_computed + num_new)
        if added is None:
            return False
        updates.extend(BlockUpdate(new.group, request.slot, new.start, new.block_ids) for new in added)
        if self._wipes_blocks:
            self._blocks_to_wipe.extend(block for new in added for block in new.block_ids)
        return True

    def _admit(self, request: Request, budget: int, updates: list[BlockUpdate]) -> int:
        """Give a waiting request a slot and blocks; returns the tokens it runs now, 0 if it does not fit yet."""
        found, blocks = 0, [list[int]() for _ in request.cache.tables]
        if self._may_read_prefix(request):
            found, blocks = self.cache.find_prefix(request.cache, request.token_ids)
        remaining = len(request.token_ids) - found
        num_new = min(remaining, budget)
        if num_new < remaining and not self.plan.enable_chunked_prefill and budget < self.plan.max_num_batched_tokens:
            return 0
        self.cache.adopt_prefix(request.cache, blocks)
        wanted = self.cache.num_blocks_wanted(request.cache, found + num_new)
        # Each running request may soon want a block in every group: admitting into the last ones would thrash.
        reserve = len(self.running) * len(self.plan.groups)
        if wanted + reserve > self.cache.pool.num_free:
            self.cache.free(request.cache)
            return 0
        request.slot = self._free_slots.pop()
        request.num_computed = found
        for group, prefix in enumerate(blocks):
            if prefix:
                updates.append(BlockUpdate(group, request.slot, 0, list(prefix)))
        grown = self._grow(request, num_new, updates)
        assert grown, "blocks were counted as free"
        self._note_admission(request, found)
        return num_new

    def _note_admission(self, request: Request, num_found: int) -> None:
        request.status = Status.RUNNING
        self.running.append(request)
        if request.num_cached < 0:
            request.num_cached = min(num_found, request.num_prompt)
            request.times.scheduled = time.time()
            if request.cache.hasher is not None:
                self.stats.prefix_queries += request.num_prompt
                self.stats.prefix_hits += request.num_cached

    def _may_read_prefix(self, request: Request) -> bool:
        """Prompt log-probabilities need the prompt computed; a user may also ask for that."""
        return not (request.source.params.skip_reading_prefix_cache or request.wants_prompt_logprobs)

    def _waits_for_leader(self, request: Request) -> bool:
        """Whether another request is about to compute the same prompt."""
        leader_id = request.source.leader_id
        if leader_id is None or leader_id == request.request_id:
            return False
        leader = self.requests.get(leader_id)
        return leader is not None and leader.num_computed < leader.num_prompt

    def _choose_victim(self) -> Request | None:
        """The running request to preempt: lowest priority first, then least work lost; never the first in order of all.

        Sparing the first in order keeps at least one request going to its end, so none starves.
        """
        first = min(self.running, key=self.waiting.rank)
        others = [request for request in self.running if request is not first]
        if not others:
            return None
        by_priority = self.plan.scheduling_policy == "priority"
        return min(
            others,
            key=lambda request: (
                -request.source.priority if by_priority else 0,
                self.cache.num_blocks_lost(request.cache),
                -request.order,
            ),
        )

    def _preempt(self, victim: Request, rows: list[_Row], updates: list[BlockUpdate]) -> int:
        """Put a running request back among the waiting; returns the tokens that it gives back to this step."""
        given_back = 0
        for row in rows:
            if row.request is victim:
                given_back = row.num_new
                victim.num_pending -= row.samples
                victim.num_steps_under_way -= 1
        rows[:] = [row for row in rows if row.request is not victim]
        updates[:] = [update for update in updates if update.slot != victim.slot]
        self._leave_slot(victim)
        victim.num_computed = 0
        victim.status = Status.WAITING
        victim.times.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.push(victim)
        return given_back

    def _leave_slot(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.free(request.cache)
        self._free_slots.append(request.slot)
        self._freed_slots.append(request.slot)
        request.slot = -1

    def _make_step(self, rows: list[_Row], updates: list[BlockUpdate], new_rows: list[NewRow]) -> Step:
        self.stats.num_steps += 1
        num_new = np.array([row.num_new for row in rows], np.int32)
        after = np.array([row.request.num_computed for row in rows], np.int32)
        step = Step(
            step_id=self.stats.num_steps,
            slots=np.array([row.request.slot for row in rows], np.int32),
            num_computed=after - num_new,
            num_new=num_new,
            samples=np.array([row.samples for row in rows], np.bool_),
            new_rows=new_rows,
            freed_slots=self._freed_slots,
            block_updates=updates,
            blocks_to_wipe=self._blocks_to_wipe,
        )
        self._freed_slots, self._blocks_to_wipe = [], []
        return step

    def _new_row(self, request: Request) -> NewRow:
        source = request.source
        return NewRow(
            slot=request.slot,
            token_ids=list(request.token_ids),
            prompt_len=request.num_prompt,
            params=source.params,
            seed=source.seed,
            stop_token_ids=sorted(request.stop_token_ids | request.eos_token_ids),
            bad_words_token_ids=source.bad_words_token_ids,
            prompt_logprobs_from=request.num_logprobs_done,
        )

    def _new_cache(self, source: EngineRequest) -> RequestCache:
        """Without prefix caching, only completions of one prompt find each other's blocks."""
        extra = [source.cache_salt] if source.cache_salt else []
        if not self.plan.enable_prefix_caching:
            if source.leader_id is None:
                return self.cache.new_request(None)
            extra.append(f"leader {source.leader_id}")
        return self.cache.new_request(PrefixHasher(self.plan.block_size, extra))

    def _max_len(self, source: EngineRequest) -> int:
        """Tokens at which a request ends.

        Raises:
            InvalidRequestError: it has no room for a token.
        """
        longest = self.plan.max_model_len
        num_prompt = len(source.prompt_token_ids)
        if num_prompt == 0:
            raise InvalidRequestError("The prompt is empty.", "prompt")
        if num_prompt >= longest:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; the engine takes at most {longest}, prompt and answer together.",
                "prompt",
            )
        if not self.plan.enable_chunked_prefill and num_prompt > self.plan.max_num_batched_tokens:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; without chunked prefill at most "
                f"{self.plan.max_num_batched_tokens} fit a step.",
                "prompt",
            )
        max_tokens = source.params.max_tokens
        return longest if max_tokens is None else min(longest, num_prompt + max_tokens)

    def _update_row(self, row: _Row, index: int, result: StepResult, now: float) -> EngineOutput | None:
        request = row.request
        request.num_pending -= row.samples
        request.num_steps_under_way -= 1
        is_nan = row.samples and result.token_ids[index] == NAN_TOKEN
        # Which blocks such values have reached is not known: windows and preemptions may have passed them on. So from
        # the first one on, every block is wiped before it is used again, at no cost to engines that never see one.
        self._wipes_blocks |= is_nan
        if request.status is Status.FINISHED:
            return None
        logprobs = result.logprobs.get(index)
        if logprobs is not None and logprobs.prompt:
            request.prompt_logprobs.extend(logprobs.prompt)
            request.num_logprobs_done += len(logprobs.prompt)
        if not row.samples:
            return None
        if is_nan:
            return self._fail(request, NAN_ERROR)
        output = self._append(request, result.token_ids[index], now)
        if logprobs is not None and logprobs.sampled is not None:
            output.logprobs = [logprobs.sampled]
        return output

    def _append(self, request: Request, token_id: int, now: float) -> EngineOutput:
        request.token_ids.append(token_id)
        self.stats.generation_tokens += 1
        times = request.times
        times.last_token = now
        is_first = times.first_token == 0.0
        reason, stop_reason = request.finish_reason_after(token_id)
        output = EngineOutput(request.request_id, [token_id], finish_reason=reason, stop_reason=stop_reason)
        if is_first:
            times.first_token = now
            output.num_cached_tokens = request.num_cached
            self.stats.prompt_tokens += request.num_prompt
        if is_first or reason is not None:
            output.times = times
        if request.prompt_logprobs:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []
        if reason is not None:
            self._finish(request)
        return output

    def _fail(self, request: Request, error: str) -> EngineOutput:
        """End one request with an error; what it computed is not shared."""
        self.cache.distrust(request.cache)
        self._finish(request)
        return EngineOutput(request.request_id, finish_reason="error", error=error, times=request.times)

    def _finish(self, request: Request) -> None:
        was_waiting = request.status is Status.WAITING
        if request.status is Status.RUNNING:
            self._leave_slot(request)
        request.status = Status.FINISHED
        if was_waiting:
            self.waiting.discard(request)
        del self.requests[request.request_id]

    def _refresh_stats(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self.running), len(self.waiting)
        stats.num_free_blocks = self.cache.pool.num_free
        stats.cache_usage = self.cache.pool.usage

    def current_stats(self) -> EngineStats:
        """Figures as of now."""
        self._refresh_stats()
        return self.stats
