"""Long-running responses that are cancelled when the client disconnects, and event streams."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from octavo.api.connection import EncodeText, text_writer
from octavo.api.drain import SHUTTING_DOWN, Drain
from octavo.api.errors import INTERNAL_ERROR, HttpError, describe_error
from octavo.errors import OctavoError, OverloadedError
from octavo.outputs.stream import TextTaker

logger = logging.getLogger(__name__)
Item = TypeVar("Item")

JSON_HEADERS = [(b"content-type", b"application/json")]
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # reverse proxies must pass each event on at once
]
DONE = b"data: [DONE]\n\n"
STARTED_AT_ONCE = 8
"""How many coroutines of one request are started before the event loop runs others."""
SERVER_SEND = "octavo.send"
"""Where a request's scope has the server's own way to send, before any middleware wraps it."""
COMMENT = b": keep-alive\n\n"


class WatchedResponse(Response):
    """Runs ``work(send)`` as the answer; if the client goes away, or the server must end, ``work`` is cancelled.

    Exceptions before the answer's first byte reach the app's handlers and become answers with a status. Headers that
    are set on this object are added to those of the answer.
    """

    def __init__(self, work: Callable[[Send], Awaitable[None]], drain: Drain) -> None:
        super().__init__()
        self._work = work
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        send = _DirectSend(send, scope.get(SERVER_SEND) or send, headers)
        work = asyncio.ensure_future(_as_coroutine(self._work(send)))
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        self._drain.track(work)
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
        if work.cancelled():
            if self._drain.is_aborting:
                raise OverloadedError(SHUTTING_DOWN)
            return
        error = work.exception()
        if error is not None and not isinstance(error, OctavoError):
            logger.error("A request failed", exc_info=error)
            raise HttpError(500, INTERNAL_ERROR) from None
        work.result()


class _DirectSend:
    """Sends an answer's head through all middleware, which may add headers; its body can go straight to the server.

    A stream sends its body in hundreds of small pieces, and each layer would cost as much as the piece itself.

    Attributes:
        body: the server's own ``send``, for messages after the response start.
    """

    def __init__(self, send: Send, body: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self.body = body

    def __call__(self, message: Message) -> Awaitable[None]:
        if self._headers and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self._headers]}
        return self._send(message)


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, body: bytes | Sequence[bytes]) -> None:
    """A whole answer with status 200; pieces of it go out as fast as the client reads."""
    pieces = [body] if isinstance(body, bytes) else body
    headers = [*JSON_HEADERS, (b"content-length", str(sum(map(len, pieces))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": pieces[-1]})


def error_event(error: Exception) -> bytes:
    """An error as a server-sent event."""
    return b"data: " + describe_error(error) + b"\n\n"


async def send_events(
    send: Send,
    events: AsyncGenerator[bytes, None],
    drain: Drain,
    *,
    done: bytes = DONE,
    describe: Callable[[Exception], bytes] = error_event,
    keep_alive_interval: float = 0.0,
) -> None:
    """Send server-sent events as they come, closed by ``done``.

    The answer starts with the first event: what fails before it is raised and gets a status of its own. What
    fails later becomes an event with the error, because the status has been sent.

    Args:
        describe: makes that event, in the protocol's shape.
        keep_alive_interval: seconds without an event after which the stream gets a comment, and so begins; 0 is never.
    """
    if keep_alive_interval:
        events = kept_alive(events, keep_alive_interval)
    try:
        first = await anext(events, b"")
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
        if isinstance(send, _DirectSend):
            send = send.body
        last = done
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except asyncio.CancelledError:
            if not drain.is_aborting:
                raise
            last = describe(OverloadedError(SHUTTING_DOWN)) + done
        except OctavoError as error:
            last = describe(error) + done
        except Exception as error:
            logger.exception("A stream failed")
            last = describe(error) + done
        await send({"type": "http.response.body", "body": last})
    finally:
        await events.aclose()


def direct_writer(send: Send, encode: EncodeText) -> TextTaker | None:
    """What writes the events of an answer's text past all layers; None if a layer wants to see them."""
    return text_writer(send.body, encode) if isinstance(send, _DirectSend) else None


async def merge(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items of several generators as they come, each with its generator's index.

    The first exception ends all. Closing this generator closes the others.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as source:
            async for item in source:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item | _End]] = asyncio.Queue(maxsize=len(sources))
    tasks: list[asyncio.Task[None]] = []
    try:
        for index, source in enumerate(sources):
            tasks.append(asyncio.create_task(_pump(index, source, queue)))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn
        num_open = len(sources)
        while num_open:
            index, item_or_end = await queue.get()
            if not isinstance(item_or_end, _End):
                yield index, item_or_end
            elif item_or_end.error is not None:
                raise item_or_end.error
            else:
                num_open -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _End:
    error: Exception | None = None


async def _pump(
    index: int, source: AsyncGenerator[Item, None], queue: "asyncio.Queue[tuple[int, Item | _End]]"
) -> None:
    end = _End()
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((index, item))
    except Exception as error:
        end.error = error
    await queue.put((index, end))


async def last_items(sources: Sequence[AsyncGenerator[Item, None]]) -> list[Item]:
    """Run several generators side by side and keep the last item of each."""
    last: dict[int, Item] = {}
    async with aclosing(merge(sources)) as items:
        async for index, item in items:
            last[index] = item
    return [last[index] for index in range(len(sources))]


async def kept_alive(events: AsyncGenerator[bytes, None], seconds: float) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none came for ``seconds``. Closing this closes the events.

    As without comments, the next event is awaited only when the last one was sent.
    """
    coming: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
    pumping = asyncio.create_task(_pump_events(events, coming))
    try:
        while not pumping.done() or not coming.empty():
            getting = asyncio.ensure_future(coming.get())
            try:
                while not getting.done() and not pumping.done():
                    await asyncio.wait((getting, pumping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                    if not getting.done() and not pumping.done():
                        yield COMMENT
                if not getting.done():
                    break
                yield getting.result()
            finally:
                getting.cancel()
            coming.task_done()
        await pumping
    finally:
        pumping.cancel()
        await asyncio.wait((pumping,))


async def _pump_events(events: AsyncGenerator[bytes, None], coming: asyncio.Queue[bytes]) -> None:
    async with aclosing(events):
        async for event in events:
            await coming.put(event)
            await coming.join()
