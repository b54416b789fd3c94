"""Requests that wait, in the order in which they are to run."""

import heapq

from octavo.scheduling.request import Request, Status

Rank = tuple[int, int]


class WaitingQueue:
    """A priority queue over waiting requests; aborted ones are left in and skipped when they surface.

    Args:
        by_priority: order by priority first (lower runs first), then by arrival; else by arrival alone.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[Rank, Request]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def rank(self, request: Request) -> Rank:
        """Sort key; a preempted request keeps its place in the order of arrival."""
        return (request.source.priority if self._by_priority else 0, request.order)

    def push(self, request: Request) -> None:
        """Add a request whose status is waiting."""
        heapq.heappush(self._heap, (self.rank(request), request))
        self._num_waiting += 1

    def pop(self) -> Request | None:
        """Take the first request out, None if nothing waits."""
        while self._heap:
            _, request = heapq.heappop(self._heap)
            if request.status is Status.WAITING:
                self._num_waiting -= 1
                return request
        return None

    def discard(self, request: Request) -> None:
        """Note that a waiting request is finished; its entry goes when it surfaces, or with the next clean-up."""
        assert request.status is not Status.WAITING
        self._num_waiting -= 1
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_waiting:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)
