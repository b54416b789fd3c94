"""The life cycle of requests: they arrive, wait, run, may have to wait again, and end. All of it happens here."""

import math
import time
from collections.abc import Sequence

from octavo.cache import CacheManager
from octavo.errors import InvalidRequestError
from octavo.records import EngineRequest, EngineStats, Plan
from octavo.sampling.rules import TokenRule
from octavo.scheduling.admission import Admission
from octavo.scheduling.arrival import RequestArrival
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, Status
from octavo.scheduling.rows import StepPart
from octavo.scheduling.running import Running


class Lifecycle:
    """All unfinished requests, and every change of their status.

    Attributes:
        running: those that have a slot.

    Args:
        stats: counts prefix queries and hits, and preemptions.
    """

    def __init__(self, plan: Plan, cache: CacheManager, stats: EngineStats) -> None:
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue()
        self.running = Running(plan, cache)
        self._arrival = RequestArrival(plan, cache)
        self._admission = Admission(plan, cache)
        self._stats = stats
        self._num_arrived = 0
        self._num_admissible = math.inf

    def add_request(self, source: EngineRequest, rules: Sequence[TokenRule]) -> None:
        """Queue a request, with the rules for its tokens.

        Raises:
            InvalidRequestError: its id is in use, its prompt leaves no room for a token, or it can never fit the cache.
        """
        if source.request_id in self.requests:
            raise InvalidRequestError(f"The request id {source.request_id!r} is already in use.", "request_id")
        request = self._arrival.receive(source, self._num_arrived, rules)
        request.completion.times.queued = time.time()
        self._num_arrived += 1
        self.requests[source.request_id] = request
        self.waiting.push(request)

    def schedule_running(self) -> tuple[StepPart, list[Request]]:
        """Schedule running requests, see :meth:`Running.schedule_running`; preempted ones wait again."""
        part, preempted = self.running.schedule_running()
        for request in preempted:
            self._wait_again(request)
        return part, preempted

    def admit(self, budget: int) -> list[StepPart]:
        """Admit waiting requests, in order, while slots, blocks and the token budget last."""
        parts: list[StepPart] = []
        held_back: list[Request] = []
        while budget > 0 and self.running.rows.free_slots:
            request = self.waiting.pop()
            if request is None:
                break
            if self._is_late(request) or request.num_steps_in_flight or self._waits_for_leader(request):
                held_back.append(request)
                continue
            chunk = self._admission.first_chunk(request, self.running.rows, budget)
            if chunk is None:
                held_back.append(request)
                break
            num_found, num_scheduled = chunk
            self._note_admission(request, num_found)
            request.status = Status.RUNNING
            parts.append(self.running.enter(request, num_found, num_scheduled))
            budget -= num_scheduled
        for request in held_back:
            self.waiting.push(request)
        return parts

    def preempt_all(self) -> None:
        """Let all running requests wait again."""
        for request in self.running.rows.running():
            self.running.leave(request)
            self._wait_again(request)

    def finish_request(self, request: Request, *, is_trusted: bool = True) -> None:
        """End a request; if ``is_trusted``, its full blocks stay in the prefix cache."""
        was_waiting = request.status is Status.WAITING
        if request.status is Status.RUNNING:
            self.running.leave(request, is_trusted=is_trusted)
        request.status = Status.FINISHED
        if was_waiting:
            self.waiting.discard(request)
        elif is_trusted:
            self._admission.note_end(request)
        self.waiting.charge(request.source.client, 0, len(request.token_ids) - request.num_prompt)
        del self.requests[request.request_id]

    def close(self) -> None:
        """Hold back requests that arrive from now on."""
        self._num_admissible = self._num_arrived

    def open(self) -> None:
        """Admit all requests again."""
        self._num_admissible = math.inf

    @property
    def is_done_before_close(self) -> bool:
        """Whether all requests that arrived before :meth:`close` have ended."""
        return all(self._is_late(request) for request in self.requests.values())

    def _is_late(self, request: Request) -> bool:
        """Whether a request arrived after :meth:`close`."""
        return request.rank[1] >= self._num_admissible

    def _wait_again(self, request: Request) -> None:
        request.status = Status.WAITING
        request.completion.times.num_preemptions += 1
        self._stats.num_preemptions += 1
        self.waiting.push(request)

    def _note_admission(self, request: Request, num_found: int) -> None:
        completion = request.completion
        if completion.num_cached >= 0:
            return
        completion.num_cached = min(num_found, request.num_prompt)
        completion.times.scheduled = time.time()
        self.waiting.charge(request.source.client, request.num_prompt - completion.num_cached)
        if request.cache.hasher is not None:
            self._stats.prefix_queries += request.num_prompt
            self._stats.prefix_hits += completion.num_cached

    def _waits_for_leader(self, request: Request) -> bool:
        """Whether the request's leader (see ``EngineRequest.leader_id``) has not computed their common prompt yet."""
        leader_id = request.source.leader_id
        if leader_id is None or leader_id == request.request_id:
            return False
        leader = self.requests.get(leader_id)
        return leader is not None and self.running.num_shareable(leader) < leader.num_prompt
