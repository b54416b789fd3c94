"""Admission: rejects requests that can never run, queues the others, and decides which waiting ones may run."""

import math
import time
from array import array
from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from octavo.cache import CacheManager, PrefixHasher, RequestCache
from octavo.errors import InvalidRequestError
from octavo.records import EngineRequest, EngineStats, Plan
from octavo.sampling.grammar.constraint import Constraint
from octavo.scheduling.outlook import Outlook
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.repetition import RepetitionDetector
from octavo.scheduling.request import Request, Status
from octavo.scheduling.rows import Part
from octavo.scheduling.running import Running


class Admission:
    """Takes requests from arrival to a slot.

    Args:
        requests: all unfinished requests, by id.
        stats: counts prefix queries and hits.
    """

    def __init__(
        self,
        plan: Plan,
        cache: CacheManager,
        running: Running,
        waiting: WaitingQueue,
        requests: Mapping[str, Request],
        stats: EngineStats,
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._running = running
        self._waiting = waiting
        self._requests = requests
        self._stats = stats
        self._outlook = Outlook()
        self._num_growing_groups = sum(group.window is None for group in plan.groups)
        self._num_arrived = 0
        self._num_admissible = math.inf

    def receive(self, source: EngineRequest, constraint: Constraint | None = None) -> Request:
        """Queue a request, with the constraint on its tokens if there is one.

        Raises:
            InvalidRequestError: its id is in use, its prompt leaves no room for a token, or it can never fit the cache.
        """
        if source.request_id in self._requests:
            raise InvalidRequestError(f"The request id {source.request_id!r} is already in use.", "request_id")
        max_len = self._max_len(source)
        if not self._cache.fits(max_len):
            raise InvalidRequestError(
                f"The request may grow to {max_len} tokens, more than the cache's {self._plan.num_blocks - 1} blocks "
                f"of {self._plan.block_size} tokens hold; lower max_tokens or give the engine more cache memory."
            )
        params = source.params
        request = Request(
            source=source,
            order=self._num_arrived,
            cache=self._new_cache(source),
            token_ids=np.array(array("i", source.prompt_token_ids + source.output_token_ids), np.int32),
            stop_token_ids=frozenset(params.stop_token_ids or ()),
            eos_token_ids=frozenset(() if params.ignore_eos else source.eos_token_ids),
            max_len=max_len,
            constraint=constraint,
            repetition=_repetition_detector(source),
        )
        request.times.queued = time.time()
        self._num_arrived += 1
        self._waiting.push(request)
        return request

    def admit(self, budget: int) -> list[Part]:
        """Admit waiting requests, in order, while slots, blocks and the token budget last."""
        parts: list[Part] = []
        held_back: list[Request] = []
        while budget > 0 and self._running.rows.free_slots:
            request = self._waiting.pop()
            if request is None:
                break
            if self.is_late(request) or request.num_steps_under_way or self._waits_for_leader(request):
                held_back.append(request)
                continue
            part = self._try(request, budget)
            if part is None:
                held_back.append(request)
                break
            parts.append(part)
            budget -= int(part.num_new[0])
        for request in held_back:
            self._waiting.push(request)
        return parts

    def note_end(self, request: Request) -> None:
        """Update the expected answer length with a finished request."""
        self._outlook.note_end(len(request.token_ids) - request.num_prompt)

    def close(self) -> None:
        """Hold back requests that arrive from now on."""
        self._num_admissible = self._num_arrived

    def open(self) -> None:
        """Admit all requests again."""
        self._num_admissible = math.inf

    def is_late(self, request: Request) -> bool:
        """Whether a request arrived after :meth:`close`."""
        return request.order >= self._num_admissible

    def _try(self, request: Request, budget: int) -> Part | None:
        """Admit a request, with as many of its tokens as the budget allows; None if it does not fit yet."""
        cache, num_tokens = request.cache, len(request.token_ids)
        found, blocks = 0, [list[int]() for _ in cache.tables]
        if self._may_read_prefix(request):
            found, blocks = self._cache.find_prefix(cache, request.token_ids)
        remaining = num_tokens - found
        num_new = min(remaining, budget)
        if num_new < remaining and not self._plan.enable_chunked_prefill and budget < self._plan.token_budget:
            return None
        self._cache.adopt_prefix(cache, blocks)
        wanted = self._cache.num_blocks_wanted(cache, found + num_new)
        request.expected_len = self._outlook.expected_len(request)
        # Reserve one block per running request and group: blocks fill up, and windows move on, at different times.
        num_free = self._cache.pool.num_free - len(self._running.rows) * len(self._plan.groups)
        if wanted > num_free or not self._can_grow(request, found, num_free):
            self._cache.free(cache)
            return None
        request.status = Status.RUNNING
        self._note_admission(request, found)
        return self._running.enter(request, found, num_new)

    def _can_grow(self, request: Request, num_found: int, num_free: int) -> bool:
        """Whether the free blocks last until running requests end, if this one runs, too.

        Admitting a request that does not fit in the end would cause a preemption, and compute tokens twice.
        """
        rows = self._running.rows
        if not len(rows) or not self._num_growing_groups:
            return True
        room = num_free // self._num_growing_groups * self._plan.block_size
        return self._outlook.fits(rows, num_found, len(request.token_ids), request.expected_len, room)

    def _note_admission(self, request: Request, num_found: int) -> None:
        if request.num_cached >= 0:
            return
        request.num_cached = min(num_found, request.num_prompt)
        request.times.scheduled = time.time()
        self._waiting.charge(request.source.client, request.num_prompt - request.num_cached)
        if request.cache.hasher is not None:
            self._stats.prefix_queries += request.num_prompt
            self._stats.prefix_hits += request.num_cached

    def _may_read_prefix(self, request: Request) -> bool:
        """Whether the prefix cache may be used: not with prompt log-probabilities, or if the request says so."""
        return not (request.source.params.skip_reading_prefix_cache or request.wants_prompt_logprobs)

    def _waits_for_leader(self, request: Request) -> bool:
        """Whether the request's leader (see ``EngineRequest.leader_id``) has not computed their common prompt yet."""
        leader_id = request.source.leader_id
        if leader_id is None or leader_id == request.request_id:
            return False
        leader = self._requests.get(leader_id)
        return leader is not None and self._running.num_computed(leader) < leader.num_prompt

    def _new_cache(self, source: EngineRequest) -> RequestCache:
        """An empty cache share. Without prefix caching, only completions of one prompt share blocks."""
        extra = [source.cache_salt] if source.cache_salt else []
        if source.prompt_embeds is not None:
            extra.append(f"embeds {source.prompt_embeds.dtype} {sha256(source.prompt_embeds.data).hexdigest()}")
        if not self._plan.enable_prefix_caching:
            if source.leader_id is None:
                return self._cache.new_request(None)
            extra.append(f"leader {source.leader_id}")
        return self._cache.new_request(PrefixHasher(self._plan.block_size, extra))

    def _max_len(self, source: EngineRequest) -> int:
        """The number of tokens at which a request ends at the latest.

        Raises:
            InvalidRequestError: its prompt leaves no room for a token.
        """
        # A pooling request generates no token, so its prompt may fill the context.
        is_pooling = source.pooling is not None
        longest = self._plan.max_model_len + is_pooling
        num_prompt = len(source.prompt_token_ids)
        if num_prompt == 0:
            raise InvalidRequestError("The prompt is empty.", "prompt")
        if num_prompt >= longest:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; the engine takes at most {self._plan.max_model_len}"
                + ("." if is_pooling else ", prompt and answer together."),
                "prompt",
            )
        if not self._plan.enable_chunked_prefill and num_prompt > self._plan.token_budget:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; without chunked prefill at most "
                f"{self._plan.token_budget} fit a step.",
                "prompt",
            )
        if is_pooling:
            return num_prompt
        max_tokens = source.params.max_tokens
        return longest if max_tokens is None else min(longest, num_prompt + max_tokens)


def _repetition_detector(source: EngineRequest) -> RepetitionDetector | None:
    params = source.params.repetition_detection
    return None if params is None or not params.is_on else RepetitionDetector(params, source.output_token_ids)
