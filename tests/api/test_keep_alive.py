"""Comments in idle streams: they come in time, and change nothing else."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fake_engine import REPLY, FakeEngine
from openai import OpenAI
from running_server import PATIENCE, StartServer

from octavo.api.watched import COMMENT, kept_alive
from octavo.records import RequestOutput

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Events:
    """A generator of numbered events that notes when it is asked for the next, and whether it was closed.

    Attributes:
        may_go_on: while it is clear, no event comes but the first.
    """

    def __init__(self, pauses: list[float], error: Exception | None = None) -> None:
        self.pauses = pauses
        self.error = error
        self.num_asked = 0
        self.is_closed = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def generate(self) -> AsyncGenerator[bytes, None]:
        try:
            for number, pause in enumerate(self.pauses):
                self.num_asked = number + 1
                await asyncio.sleep(pause)
                if number:
                    await self.may_go_on.wait()
                yield b"%d" % number
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


def test_comments_fill_the_pauses() -> None:
    async def read(events: Events, seconds: float) -> list[bytes]:
        found = []
        async for event in kept_alive(events.generate(), seconds):
            found.append(event)
            if found[-3:] == [b"0", COMMENT, COMMENT]:
                events.may_go_on.set()
        assert events.is_closed
        return found

    async def main() -> None:
        paused = Events([0.0] * 3)
        paused.may_go_on.clear()
        found = await read(paused, 0.02)
        assert [event for event in found if event != COMMENT] == [b"0", b"1", b"2"]
        assert await read(Events([0.0] * 3), 60) == [b"0", b"1", b"2"]

    asyncio.run(main())


def test_nothing_is_asked_for_before_the_last_event_is_sent() -> None:
    events = Events([0.0] * 3)

    async def main() -> None:
        number = 0
        async for _ in kept_alive(events.generate(), 10):
            number += 1
            await asyncio.sleep(0.01)
            assert events.num_asked == number

    asyncio.run(main())


def test_errors_and_ends_pass_through() -> None:
    failing, abandoned = Events([0.0], ValueError("over")), Events([0.0, 60.0])

    async def main() -> None:
        with pytest.raises(ValueError, match="over"):
            async for _ in kept_alive(failing.generate(), 10):
                pass
        stream = kept_alive(abandoned.generate(), 0.01)
        while (first := await anext(stream)) == COMMENT:
            pass
        assert first == b"0" and await anext(stream) == COMMENT
        await stream.aclose()
        assert failing.is_closed and abandoned.is_closed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


class PausingEngine(FakeEngine):
    """Gives the end of each answer once it may."""

    def __init__(self) -> None:
        super().__init__(reply="ab", step_seconds=0.1)
        self.may_end = threading.Event()

    async def _outputs(self, *request: Any) -> AsyncGenerator[RequestOutput, None]:
        async for output in super()._outputs(*request):
            if output.finished:
                await asyncio.to_thread(self.may_end.wait, PATIENCE)
            yield output


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_slow_stream_has_comments_and_the_same_events(start_server: StartServer, path: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}

    def read(num_comments: int, **settings: Any) -> list[str]:
        """The lines of a stream that ends after so many comments."""
        engine = PausingEngine()
        lines: list[str] = []
        with start_server(engine, **settings).client.stream("POST", path, json={**body, "stream": True}) as response:
            for line in filter(None, response.iter_lines()):
                lines.append(line)
                if lines.count(": keep-alive") >= num_comments:
                    engine.may_end.set()
        return lines

    quiet, spoken = read(0), read(2, sse_keep_alive_interval=0.05)
    assert ": keep-alive" not in quiet
    assert len([line for line in spoken if line.startswith("data: ")]) == len(quiet)


def test_the_official_client_does_not_mind(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.02), sse_keep_alive_interval=0.005)
    with OpenAI(api_key="x", base_url=f"{server.url}/v1") as client:
        chunks = client.completions.create(model="fake/model", prompt="hi", max_tokens=100, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY


def test_what_fails_before_the_first_event_has_a_status(start_server: StartServer) -> None:
    server = start_server(sse_keep_alive_interval=5.0)
    response = server.client.post(COMPLETIONS, json={"prompt": "overload", "stream": True})
    assert response.status_code == 503
