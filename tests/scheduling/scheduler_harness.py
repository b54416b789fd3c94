"""A scheduler and a simulated device driven together, with independent books on every request."""

import random
from collections import deque
from collections.abc import Hashable, Iterable

import numpy as np
from simulated_device import SimulatedDevice

from octavo.errors import InvalidRequestError
from octavo.records import NAN_TOKEN, EngineOutput, EngineRequest, Plan, Step, StepResult
from octavo.scheduling import Scheduler
from octavo.scheduling.outlook import Outlook
from octavo.scheduling.request import Request, Status
from octavo.scheduling.rows import Rows

END, STOP = 3, 4


class HastyOutlook(Outlook):
    """Sees no growth."""

    def fits(self, rows: Rows, num_held: int, num_tokens: int, expected_len: int, room: int) -> bool:
        return True


class Harness:
    """Submits steps in order, hands results back in order, and checks what both sides say.

    Args:
        is_hasty: let requests in as if none would grow, so that some have to give way later.

    Attributes:
        sources: every request that was accepted.
        received: request id → tokens that came out.
        finished: request id → finish reason.
        outputs: everything that came out, in order.
    """

    def __init__(
        self, plan: Plan, seed: int = 0, nan_share: float = 0.0, end_share: float = 0.1, *, is_hasty: bool = True
    ) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan)
        if is_hasty:
            self.scheduler._lifecycle._admission._outlook = HastyOutlook()
        self.device = SimulatedDevice(plan, self._owner_of, self._tenant_of, self._keys_at, self._sample, self._draft)
        self.random = random.Random(seed)
        self.nan_share, self.end_share = nan_share, end_share
        self.results: deque[StepResult] = deque()
        self.sources: dict[str, EngineRequest] = {}
        self.received: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.outputs: list[EngineOutput] = []

    def _owner_of(self, slot: int) -> str:
        (owner,) = [request.request_id for request in self.scheduler.running if request.slot == slot]
        return owner

    def _tenant_of(self, request_id: str) -> Hashable:
        source = self.sources[request_id]
        if self.plan.enable_prefix_caching:
            return (source.cache_salt or "",)
        return (source.cache_salt or "", source.leader_id or f"alone {request_id}")

    def _keys_at(self, request_id: str, position: int) -> Hashable:
        spans = self.sources[request_id].key_spans
        return tuple((span.key, position - span.start) for span in spans if span.start <= position < span.end)

    def _draft(self) -> list[int]:
        return [self.random.choice([0, 1, 2, END]) for _ in range(self.random.randint(0, self.plan.num_drafts))]

    def _sample(self, request_id: str, num_tokens: int, draft: int | None) -> int:
        if draft is not None and self.random.random() < 0.6:
            return draft
        draw = self.random.random()
        if draw < self.nan_share:
            return NAN_TOKEN
        if draw < self.nan_share + self.end_share:
            return self.random.choice([END, STOP])
        return self.random.choice([0, 0, 0, 1, 2])

    def add(self, source: EngineRequest) -> bool:
        """Offer a request; returns whether it was accepted, which must be so exactly if it can run."""
        try:
            self.scheduler.add_request(source)
        except InvalidRequestError as error:
            assert str(error).endswith("."), "a refusal is a sentence"
            assert not self._should_fit(source)
            return False
        assert self._should_fit(source)
        self.sources[source.request_id] = source
        self.received[source.request_id] = []
        return True

    def _max_len(self, source: EngineRequest) -> int:
        room = source.params.max_tokens or self.plan.max_model_len
        return min(self.plan.max_model_len, len(source.prompt_token_ids) + room)

    def _should_fit(self, source: EngineRequest) -> bool:
        plan, num_prompt = self.plan, len(source.prompt_token_ids)
        if not 0 < num_prompt < plan.max_model_len:
            return False
        if not plan.enable_chunked_prefill and num_prompt > plan.token_budget:
            return False
        return self.scheduler.cache.fits(self._max_len(source))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests, alive or not, named once or twice."""
        request_ids = list(request_ids)
        alive = set(request_ids) & set(self.scheduler.requests)
        outputs = self.scheduler.abort(request_ids)
        assert sorted(output.request_id for output in outputs) == sorted(alive)
        assert all(output.finish_reason == "abort" for output in outputs)
        self._take(outputs)
        self.check()

    def schedule(self) -> Step | None:
        """Submit one step if one may be under way and something can run."""
        if self.scheduler.num_in_flight > self.plan.num_steps_ahead:
            return None
        step = self.scheduler.schedule()
        if step is None:
            assert self.scheduler.num_in_flight or not self.scheduler.has_unfinished, "nothing runs, nothing ever will"
            return None
        self._check_order(step)
        self.results.append(self.device.execute(step))
        self.check()
        return step

    def update(self) -> list[EngineOutput]:
        """Hand back the oldest step's results, if any step is under way."""
        if not self.results:
            return []
        result = self.results.popleft()
        if self.random.random() < 0.5:
            result.token_ids = np.array(result.token_ids, self.random.choice([np.int32, np.int64]))
        outputs = list(self.scheduler.update(result))
        self._take(outputs)
        self.check()
        return outputs

    def step(self) -> list[EngineOutput]:
        """What an engine does: fill the pipeline, then take one result."""
        while self.schedule() is not None:
            pass
        return self.update()

    def drain(self) -> None:
        """Run until everything has ended, within a bound that a starving request would break."""
        total = sum(request.max_len for request in self.scheduler.requests.values())
        for _ in range(20 + total * (1 + len(self.scheduler.requests))):
            if not self.scheduler.has_unfinished and not self.results:
                break
            self.step()
        assert not self.scheduler.has_unfinished, "some request never ends"
        self._check_everything_is_back()

    def _check_order(self, step: Step) -> None:
        """Nobody is admitted past a client's waiting request of higher rank, unless that one could not be."""
        admitted = {row.slot for row in step.new_rows}
        for request in self.scheduler.requests.values():
            newcomers = [
                self._rank(other)
                for other in self.scheduler.running
                if other.slot in admitted and other.source.client == request.source.client
            ]
            if request.status is Status.WAITING and newcomers and not request.num_steps_in_flight:
                leader = self.scheduler.requests.get(request.source.leader_id or "")
                waits = leader is not None and self.scheduler._running.num_shareable(leader) < leader.num_prompt
                assert waits or self._rank(request) > max(newcomers)

    def _rank(self, request: Request) -> tuple[int, int]:
        return request.source.priority if self.plan.scheduling_policy == "priority" else 0, request.rank[1]

    def _take(self, outputs: list[EngineOutput]) -> None:
        self.outputs += outputs
        for output in outputs:
            request_id = output.request_id
            assert request_id not in self.finished, "a request that ended gets nothing more"
            for index in range(len(output.new_token_ids)):
                self._take_token(output, index)
            if not output.new_token_ids:
                assert output.finish_reason in ("abort", "error")
                assert (output.error is not None) == (output.finish_reason == "error")
            if output.finish_reason is not None:
                self.finished[request_id] = output.finish_reason

    def _take_token(self, output: EngineOutput, index: int) -> None:
        source, received = self.sources[output.request_id], self.received[output.request_id]
        is_first, is_last = not received, index == len(output.new_token_ids) - 1
        received.append(output.new_token_ids[index])
        end = (output.finish_reason, output.stop_reason) if is_last else (None, None)
        assert end == self._expected_end(source, received)
        assert (output.logprobs is not None) == (source.params.logprobs is not None)
        assert output.logprobs is None or [e.token_ids[0] for e in output.logprobs] == output.new_token_ids
        if index:
            return
        assert (output.num_cached_tokens is not None) == is_first
        if is_first:
            found = self.device.admissions[output.request_id][0]
            assert output.num_cached_tokens == min(found, len(source.prompt_token_ids))
            if source.params.skip_reading_prefix_cache:
                assert found == 0
        positions = [entry.rank for entry in output.prompt_logprobs or []]
        wants = is_first and source.params.prompt_logprobs is not None
        assert positions == (list(range(1, len(source.prompt_token_ids))) if wants else [])

    def _expected_end(self, source: EngineRequest, received: list[int]) -> tuple[str | None, int | None]:
        num_output = len(source.output_token_ids) + len(received)
        if num_output >= source.params.min_tokens:
            if received[-1] in source.eos_token_ids:
                return "stop", None
            if received[-1] in (source.params.stop_token_ids or []):
                return "stop", received[-1]
        if len(source.prompt_token_ids) + num_output == self._max_len(source):
            return "length", None
        return None, None

    def check(self) -> None:
        """Blocks and slots are neither lost nor given out twice, and the counts agree."""
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        held = {block for request in scheduler.running for table in request.cache.tables for block in table} - {0}
        assert pool.num_free + len(held) == self.plan.num_blocks - 1
        slots = [request.slot for request in scheduler.running]
        assert len(set(slots)) == len(slots) <= self.plan.max_num_seqs
        assert len(scheduler.requests) == len(scheduler.running) + len(scheduler.waiting)
        stats = scheduler.current_stats()
        assert (stats.num_running, stats.num_waiting) == (len(slots), len(scheduler.waiting))

    def _check_everything_is_back(self) -> None:
        assert self.scheduler.cache.pool.num_free == self.plan.num_blocks - 1
        assert sorted(self.scheduler._running.rows.free_slots) == list(range(self.plan.max_num_seqs))
        assert set(self.finished) == set(self.sources)
        for request_id, received in self.received.items():
            sampled = self.device.sampled.get(request_id, [])
            assert received == sampled[: len(received)]
            if self.finished[request_id] in ("stop", "length"):
                most = (self.plan.num_steps_ahead + 1) * (self.plan.num_drafts + 1) - 1
                assert len(sampled) - len(received) <= most
