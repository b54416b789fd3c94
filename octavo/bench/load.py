"""A load generator for servers with OpenAI's protocol: sends requests on schedule and times their answers."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.bench.http_client import EventParser, HttpClient

Status = Literal["done", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request that is ready to be sent.

    Attributes:
        body: JSON of a streaming request.
        prompt_len: tokens of the prompt, used if the server does not report it.
        abort_after: number of events with text after which to disconnect; None reads to the end.
    """

    body: bytes
    prompt_len: int
    abort_after: int | None = None


@dataclass(slots=True)
class RequestRecord:
    """Measurements of one request. Times are in seconds.

    Attributes:
        start: when it was sent, on the load's clock.
        ttft: time to the first event with text; None if there was none.
        latency: time to the end.
        itl: gaps between consecutive events with text.
        output_tokens: the server's count, else the number of events with text.
    """

    prompt_tokens: int
    status: Status = "failed"
    error: str = ""
    start: float = 0.0
    ttft: float | None = None
    latency: float = 0.0
    itl: list[float] = field(default_factory=list)
    output_tokens: int = 0

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


async def run_load(
    client: HttpClient,
    path: str,
    requests: Sequence[LoadRequest],
    arrivals: Iterable[float],
    *,
    max_concurrency: int | None = None,
    on_done: Callable[[RequestRecord], None] | None = None,
) -> list[RequestRecord]:
    """Send every request at its time and wait for all answers.

    Args:
        arrivals: seconds from the start, ascending, one per request.
        max_concurrency: maximum number of requests in flight; later ones wait, and are timed from when they are sent.
        on_done: called with each record, for progress.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency is not None else None
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request, arrival in zip(requests, arrivals, strict=True):
            delay = start + arrival - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(_send_one(client, path, request, start, gate, on_done)))
    return [task.result() for task in tasks]


async def _send_one(
    client: HttpClient,
    path: str,
    request: LoadRequest,
    origin: float,
    gate: asyncio.Semaphore | None,
    on_done: Callable[[RequestRecord], None] | None,
) -> RequestRecord:
    record = RequestRecord(request.prompt_len)
    async with AsyncExitStack() as stack:
        if gate is not None:
            await stack.enter_async_context(gate)
        sent = time.perf_counter()
        record.start = sent - origin
        try:
            await _exchange(client, path, request, record, sent)
        except (OSError, ValueError) as error:
            record.status, record.error = "failed", str(error) or type(error).__name__
        record.latency = record.latency or time.perf_counter() - sent
    if on_done is not None:
        on_done(record)
    return record


async def _exchange(client: HttpClient, path: str, request: LoadRequest, record: RequestRecord, sent: float) -> None:
    async with client.request("POST", path, request.body) as response:
        if response.status != 200:
            record.error = f"status {response.status}: {(await response.body())[:300].decode(errors='replace')}"
            return
        parser = EventParser()
        clock = _Clock(record, sent)
        is_ended = False
        async with aclosing(response.pieces()) as pieces:
            async for piece in pieces:
                now = time.perf_counter()
                for event in parser.feed(piece):
                    if event == b"[DONE]":
                        is_ended = True
                    else:
                        clock.count(_parse(event), now)
                if request.abort_after is not None and clock.num_events >= request.abort_after and not is_ended:
                    record.status = "aborted"
                    return
    if is_ended and not record.error:
        record.status = "done"
    elif not record.error:
        record.error = "the answer ended before it was complete"


def _parse(event: bytes) -> dict[str, Any]:
    content = json.loads(event)
    if not isinstance(content, dict):
        raise ValueError(f"the server sent an event that is not an object: {event[:100]!r}")
    return content


class _Clock:
    """Times the events of one answer."""

    def __init__(self, record: RequestRecord, sent: float) -> None:
        self._record = record
        self._sent = sent
        self._last = sent
        self.num_events = 0

    def count(self, event: dict[str, Any], now: float) -> None:
        """Record an event that arrived ``now``."""
        record = self._record
        if "error" in event:
            record.error = f"error within the answer: {event['error']}"
        usage = event.get("usage")
        if usage:
            record.prompt_tokens = usage.get("prompt_tokens", record.prompt_tokens)
        for choice in event.get("choices") or ():
            if choice.get("finish_reason") is not None:
                record.latency = now - self._sent
            if not (choice.get("text") or (choice.get("delta") or {}).get("content") or choice.get("token_ids")):
                continue
            if self.num_events:
                record.itl.append(now - self._last)
            else:
                record.ttft = now - self._sent
            self.num_events += 1
            self._last = now
            record.latency = now - self._sent
        record.output_tokens = (usage or {}).get("completion_tokens", max(record.output_tokens, self.num_events))


def choose_aborts(count: int, fraction: float, longest: int, seed: int) -> list[int | None]:
    """The number of events after which each request disconnects; a random ``fraction`` of them does."""
    source = random.Random(seed)
    chosen = set(source.sample(range(count), round(count * fraction)))
    return [source.randint(1, max(1, longest)) if index in chosen else None for index in range(count)]
