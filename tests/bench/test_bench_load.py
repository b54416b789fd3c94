"""The client and the load generator against servers that behave, and that do not."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from octavo.bench.http_client import HttpClient, HttpProtocolError
from octavo.bench.load import LoadRequest, RequestRecord, run_load
from octavo.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
Script = Callable[[bytes], list[bytes]]


class ScriptedServer:
    """Answers each request with the pieces a script gives; an empty piece closes the connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.num_connections = 0
        self.num_requests = 0
        self.num_open = 0
        self.most_open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.splitlines() if line.startswith(b"Content-Length:")), 0)
                body = await reader.readexactly(length)
                self.num_requests += 1
                self.num_open += 1
                self.most_open = max(self.most_open, self.num_open)
                for piece in self.script(body):
                    await asyncio.sleep(0)
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
                self.num_open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def connected(script: Script) -> AsyncGenerator[tuple[ScriptedServer, HttpClient], None]:
    server = ScriptedServer(script)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = HttpClient(f"http://127.0.0.1:{port}")
    try:
        yield server, client
    finally:
        await client.close()
        listener.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish_reason}]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8}}\n\n'
DONE = b"data: [DONE]\n\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def good_answer(_: bytes) -> list[bytes]:
    events = text_event("a") + text_event("") + text_event("b") + text_event("c", "length") + USAGE + DONE
    # Cut in the middle of an event: pieces of the network are not pieces of the protocol.
    return [CHUNKED, chunk(events[:70]), chunk(events[70:]), chunk(b"")]


def load(script: Script, num_requests: int = 1, abort_after: int | None = None, **options: int) -> list[RequestRecord]:
    async def run() -> list[RequestRecord]:
        async with connected(script) as (_, client):
            requests = [LoadRequest(b"{}", 5, abort_after)] * num_requests
            return await run_load(client, "/v1/completions", requests, [0.0] * num_requests, **options)

    return asyncio.run(run())


def test_an_answer_is_clocked_and_counted() -> None:
    (record,) = load(good_answer)
    assert (record.status, record.error) == ("done", "")
    assert (record.prompt_tokens, record.output_tokens) == (9, 8)
    assert len(record.itl) == 2
    assert record.ttft is not None
    assert 0 < record.ttft <= record.latency
    assert record.ttft + sum(record.itl) == pytest.approx(record.latency, abs=1e-6)
    assert record.tpot == pytest.approx((record.latency - record.ttft) / 7)


def test_without_usage_events_are_counted() -> None:
    (record,) = load(lambda _: [CHUNKED, chunk(text_event("a") + text_event("b", "stop") + DONE), chunk(b"")])
    assert (record.prompt_tokens, record.output_tokens) == (5, 2)


def test_hanging_up_counts_as_aborted() -> None:
    def endless(_: bytes) -> list[bytes]:
        return [CHUNKED] + [chunk(text_event("a"))] * 1000

    records = load(endless, 3, abort_after=4)
    assert {record.status for record in records} == {"aborted"}
    assert all(4 <= record.output_tokens < 1000 for record in records)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull"], "status 503: full"),
        ([CHUNKED, chunk(text_event("a")), b""], "closed the connection within"),
        ([CHUNKED, chunk(text_event("a")), chunk(b"")], "before it was complete"),
        ([CHUNKED, chunk(b'data: {"error": {"message": "broken"}}\n\n' + DONE), chunk(b"")], "broken"),
        ([CHUNKED, chunk(b"data: nonsense\n\n" + DONE), chunk(b"")], "Expecting value"),
        ([CHUNKED, chunk(b"data: []\n\n" + DONE), chunk(b"")], "not an object"),
        ([b""], "without an answer"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not HTTP"),
    ],
)
def test_failures_belong_to_their_request(pieces: list[bytes], error: str) -> None:
    def script(body: bytes) -> list[bytes]:
        return pieces if json.loads(body).get("bad") else good_answer(body)

    async def run() -> list[RequestRecord]:
        async with connected(script) as (_, client):
            requests = [LoadRequest(body, 5) for body in (b"{}", b'{"bad": 1}', b"{}")]
            return await run_load(client, "/", requests, [0.0] * 3)

    first, second, third = asyncio.run(run())
    assert (first.status, second.status, third.status) == ("done", "failed", "done")
    assert error in second.error


def test_concurrency_is_limited_and_connections_are_used_again() -> None:
    async def run() -> tuple[list[RequestRecord], ScriptedServer]:
        async with connected(good_answer) as (server, client):
            requests = [LoadRequest(b"{}", 5)] * 30
            records = await run_load(client, "/", requests, [0.0] * 30, max_concurrency=3)
            return records, server

    records, server = asyncio.run(run())
    assert {record.status for record in records} == {"done"}
    assert server.most_open <= 3
    assert server.num_connections <= 3
    assert server.num_requests == 30


def test_a_connection_that_went_stale_is_replaced() -> None:
    async def run() -> tuple[bytes, int]:
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        async with connected(lambda _: [plain, b""]) as (server, client):
            for _ in range(3):
                async with client.request("GET", "/") as response:
                    body = await response.body()
                assert await client._idle[0].reader.read() == b"", "the server closes it now"
            return body, server.num_connections

    assert asyncio.run(run()) == (b"ok", 3)


def test_bodies_without_a_length_end_with_the_connection() -> None:
    async def run() -> bytes:
        async with (
            connected(lambda _: [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nsome", b" text", b""]) as (
                _,
                client,
            ),
            client.request("GET", "/") as response,
        ):
            return await response.body()

    assert asyncio.run(run()) == b"some text"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "nonsense"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpClient(url)


def test_nobody_there() -> None:
    async def run() -> None:
        async with HttpClient("http://127.0.0.1:9").request("GET", "/"):
            pass

    with pytest.raises(OSError):
        asyncio.run(run())
    assert issubclass(HttpProtocolError, OSError)
