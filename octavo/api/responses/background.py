"""Background responses: their events are kept for clients that connect later."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from octavo.api.responses.events import ResponseStreamEvent, encode_event
from octavo.api.responses.objects import ResponseObject
from octavo.errors import InvalidRequestError

MAX_LOG_BYTES = 8 << 20
MAX_RUNNING = 128


class EventLog:
    """Events of one response, encoded; the oldest go when they are too many bytes."""

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._first = 0  # sequence number of the first event that is kept
        self._is_closed = False
        self._changed = asyncio.Event()

    async def append_events(self, new: Sequence[ResponseStreamEvent]) -> None:
        """Add the next events."""
        for event in new:
            data = encode_event(event)
            self._events.append(data)
            self.num_bytes += len(data)
        while self.num_bytes > self._max_bytes and len(self._events) > 1:
            self.num_bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def close(self) -> None:
        """There are no more."""
        self._is_closed = True
        self._wake()

    def check(self, after: int) -> None:
        """Check that all events after this number are kept."""
        if after + 1 < self._first:
            raise InvalidRequestError(
                f"starting_after: the events before number {self._first} are no longer kept.", "starting_after"
            )

    async def read(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events after this number, as they come."""
        number = after + 1
        while True:
            self.check(number - 1)
            changed = self._changed
            last = self._first + len(self._events)
            if number < last:
                yield self._events[number - self._first]
                number += 1
            elif self._is_closed:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BackgroundResponse:
    """A response that is being made, or was.

    Attributes:
        snapshot: the response as far as it is.
    """

    def __init__(self) -> None:
        self.log = EventLog()
        self.task: asyncio.Task[None] | None = None
        self.snapshot: Callable[[], ResponseObject] | None = None

    async def cancel(self) -> None:
        """End the work, and wait until it has ended."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,))
