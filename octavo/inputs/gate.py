"""Admission limits on waiting requests and prompt tokens, shared fairly between clients."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import QueueFullError

_NUM_ENDS = 32
_MAX_RETRY_SECONDS = 60


@dataclass(slots=True)
class _Entry:
    client: str
    num_tokens: int


class QueueGate:
    """Counts one frontend's requests in flight, and rejects requests beyond its limits.

    A limit filled by one client does not block the others: a client with less than an equal share of it may
    still enter, up to twice the limit in all.

    Args:
        max_running: requests that the engine runs at a time; only what is beyond them waits.
        max_waiting: most requests that may wait; None is no limit.
        max_waiting_tokens: most prompt tokens of requests without a first token; None is no limit.
        max_requests: maximum number of requests in all; None is no limit.
        clock: seconds on any steady clock.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int | None,
        max_waiting_tokens: int | None,
        max_requests: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = [max_requests, None if max_waiting is None else max_running + max_waiting]
        self._max_requests = min((limit for limit in limits if limit is not None), default=None)
        self._max_tokens = max_waiting_tokens
        self._max_running = max_running
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._num_requests: Counter[str] = Counter()
        self._num_tokens: Counter[str] = Counter()
        self._num_waiting_tokens = 0
        self._ends: deque[float] = deque(maxlen=_NUM_ENDS)

    def check(self, client: str, num_tokens: int = 0) -> None:
        """Reject a request that exceeds the limits.

        Args:
            num_tokens: of its prompt, once they are known.

        Raises:
            QueueFullError: with the number of seconds after which to retry.
        """
        num_requests = len(self._entries)
        if not self._has_room(self._num_requests[client], num_requests, 1, self._max_requests):
            raise QueueFullError(
                f"{num_requests} requests are in flight, as many as this server takes.",
                "queue_full",
                self._retry_after(),
            )
        waiting, token_limit = self._num_waiting_tokens, self._max_tokens
        # A prompt longer than the limit is admitted when nothing else waits.
        may_wait = waiting > 0 and num_tokens > 0
        if may_wait and not self._has_room(self._num_tokens[client], waiting, num_tokens, token_limit):
            raise QueueFullError(
                f"{waiting} prompt tokens wait to be processed; with {num_tokens} more they would be more than the "
                f"{token_limit} that this server takes.",
                "token_limit",
                self._retry_after(),
            )

    def enter(self, request_id: str, client: str, num_tokens: int) -> None:
        """Count an admitted request."""
        self._entries[request_id] = _Entry(client, num_tokens)
        self._num_requests[client] += 1
        if num_tokens:
            self._num_tokens[client] += num_tokens
        self._num_waiting_tokens += num_tokens

    def begin(self, request_id: str) -> None:
        """A request's prompt is processed; unknown ids and repeated calls have no effect."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.num_tokens:
            _subtract(self._num_tokens, entry.client, entry.num_tokens)
            self._num_waiting_tokens -= entry.num_tokens
            entry.num_tokens = 0

    def leave(self, request_id: str) -> None:
        """Remove a finished request."""
        self.begin(request_id)
        entry = self._entries.pop(request_id)
        _subtract(self._num_requests, entry.client, 1)
        self._ends.append(self._clock())

    def _has_room(self, own: int, total: int, more: int, limit: int | None) -> bool:
        if limit is None or total + more <= limit:
            return True
        num_clients = len(self._num_requests) + (0 if own else 1)
        return own + more <= limit / num_clients and total + more <= 2 * limit

    def _retry_after(self) -> int:
        """Estimated seconds until the waiting requests have run, from the rate of recent completions."""
        if len(self._ends) < 2:
            return 1
        seconds_each = (self._clock() - self._ends[0]) / len(self._ends)
        num_waiting = max(1, len(self._entries) - self._max_running)
        return min(_MAX_RETRY_SECONDS, max(1, math.ceil(num_waiting * seconds_each)))


def _subtract(counter: Counter[str], client: str, count: int) -> None:
    """Decrement, and forget clients without requests."""
    counter[client] -= count
    if counter[client] <= 0:
        del counter[client]
