"""The queue of waiting requests: fair between clients, and by priority or arrival within a client."""

import heapq

from octavo.scheduling.request import Rank, Request, Status

Place = tuple[int, float, int]

_GENERATED_WEIGHT = 2.0
"""Cost of a generated token relative to a prompt token (as in arXiv:2401.00588)."""
_MAX_CLIENTS = 4096


Line = list[tuple[Rank, Request]]


class WaitingQueue:
    """One line (a heap) per client; the client that was served the fewest tokens is next.

    Prompt tokens are charged when a request is admitted, generated ones when it ends. A client that returns after a
    pause starts level with the others, so nobody saves up turns (start-time fair queueing; with tokens as cost: Sheng
    et al., arXiv:2401.00588). Requests of one client are ordered by rank. Aborted requests stay in their line and are
    skipped when they reach its head. Fairness is decided here because all frontends share this queue, and because it
    knows tokens. If requests name no clients, there is one line. Priority comes before turn and arrival.
    """

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        # A heap of places. Every line has at least one entry at or before its true place; stale entries may remain.
        self._places: list[tuple[Place, str]] = []
        self._served: dict[str, float] = {}
        self._now_served = 0.0
        self._num_waiting = 0
        self._num_finished = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, request: Request) -> None:
        """Add a request with the status ``WAITING``."""
        client = request.source.client
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = []
            self._served[client] = max(self._served.get(client, 0.0), self._now_served)
        heapq.heappush(line, (request.rank, request))
        self._num_waiting += 1
        if line[0][1] is request:
            self._enter_place(client, request)

    def pop(self) -> Request | None:
        """Remove and return the first request; None if nothing waits."""
        while self._places:
            place, client = heapq.heappop(self._places)
            head = self._head(client)
            if head is None:
                continue
            actual = self._place(client, head)
            if place < actual:
                heapq.heappush(self._places, (actual, client))
            elif place == actual:
                heapq.heappop(self._lines[client])
                self._num_waiting -= 1
                self._now_served = max(self._now_served, actual[1])
                following = self._head(client)
                if following is not None:
                    self._enter_place(client, following)
                return head
        return None

    def charge(self, client: str, num_prompt: int, num_generated: int = 0) -> None:
        """Add tokens to what a client was served."""
        served = max(self._served.pop(client, 0.0), self._now_served)
        self._served[client] = served + num_prompt + _GENERATED_WEIGHT * num_generated
        if len(self._served) > _MAX_CLIENTS:
            self._forget_clients()

    def discard(self, request: Request) -> None:
        """Note that a waiting request has ended; its entry goes when it reaches the head or by the next clean-up."""
        assert request.status is not Status.WAITING
        self._num_waiting -= 1
        self._num_finished += 1
        if self._num_finished > max(64, self._num_waiting):
            for line in self._lines.values():
                line[:] = [entry for entry in line if entry[1].status is Status.WAITING]
                heapq.heapify(line)
            self._num_finished = 0
            self._enter_all_places()

    def _head(self, client: str) -> Request | None:
        """The first of a client's requests, None if there is none; deletes the line if it is empty."""
        line = self._lines.get(client)
        if line is None:
            return None
        while line and line[0][1].status is not Status.WAITING:
            heapq.heappop(line)
            self._num_finished -= 1
        if not line:
            del self._lines[client]
            return None
        return line[0][1]

    def _place(self, client: str, head: Request) -> Place:
        priority, order = head.rank
        return (priority, self._served[client], order)

    def _enter_place(self, client: str, head: Request) -> None:
        heapq.heappush(self._places, (self._place(client, head), client))
        if len(self._places) > 2 * len(self._lines) + 64:
            self._enter_all_places()

    def _enter_all_places(self) -> None:
        heads = [(client, self._head(client)) for client in list(self._lines)]
        self._places = [(self._place(client, head), client) for client, head in heads if head is not None]
        heapq.heapify(self._places)

    def _forget_clients(self) -> None:
        """Drop clients that are not ahead (they would start level anyway), and the oldest half of those that are."""
        ahead = [client for client, tokens in self._served.items() if tokens > self._now_served]
        kept = {*ahead[-_MAX_CLIENTS // 2 :], *self._lines}
        self._served = {client: tokens for client, tokens in self._served.items() if client in kept}
