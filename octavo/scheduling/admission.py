"""Admission: whether a waiting request may run, and with how many of its tokens."""

from octavo.cache import CacheManager
from octavo.records import Plan
from octavo.scheduling.outlook import Outlook
from octavo.scheduling.request import Request
from octavo.scheduling.rows import Rows


class Admission:
    """Judges by the token budget, the free blocks, and how far running requests will grow."""

    def __init__(self, plan: Plan, cache: CacheManager) -> None:
        self._plan = plan
        self._cache = cache
        self._outlook = Outlook()
        self._growing_sizes = [group.block_size for group in plan.groups if group.spec.reach is None]

    def first_chunk(self, request: Request, rows: Rows, budget: int) -> tuple[int, int] | None:
        """Adopt a request's cached prefix, if the request may run now.

        Args:
            rows: the running requests.
            budget: maximum number of tokens to compute.

        Returns:
            Numbers of tokens found in the cache and of tokens to compute next; None if it does not fit yet.
        """
        cache, num_tokens = request.cache, len(request.token_ids)
        found, blocks = 0, [list[int]() for _ in cache.tables]
        if request.completion.reads_prefix_cache:
            found, blocks = self._cache.find_prefix(cache, request.token_ids)
        remaining = num_tokens - found
        num_scheduled = min(remaining, budget)
        if num_scheduled < remaining and not self._plan.enable_chunked_prefill and budget < self._plan.token_budget:
            return None
        self._cache.adopt_prefix(cache, blocks)
        wanted = self._cache.num_blocks_wanted(cache, found + num_scheduled)
        request.expected_len = self._outlook.expected_len(request)
        num_free = self._cache.pool.num_free - self._num_reserved(len(rows))
        if wanted > num_free or not self._can_grow(request, rows, found, num_free):
            self._cache.free(cache)
            return None
        return found, num_scheduled

    def note_end(self, request: Request) -> None:
        """Update the expected answer length with a finished request."""
        self._outlook.note_end(len(request.token_ids) - request.num_prompt)

    def _num_reserved(self, num_running: int) -> int:
        """One block per running request and group: blocks fill up, and windows move on, at different times."""
        return num_running * len(self._plan.groups)

    def _can_grow(self, request: Request, rows: Rows, num_found: int, num_free: int) -> bool:
        """Whether the free blocks last until running requests end, if this one runs, too.

        Admitting a request that does not fit in the end would cause a preemption, and compute tokens twice.
        """
        if not len(rows) or not self._growing_sizes:
            return True
        room = int(num_free / sum(1 / size for size in self._growing_sizes))
        return self._outlook.fits(rows, num_found, len(request.token_ids), request.expected_len, room)
