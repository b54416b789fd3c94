"""Many streams and slow readers: everybody gets their own text, whole and in order, and nobody's memory grows."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fake_engine import FakeEngine
from running_server import PATIENCE, RunningServer, StartServer
from test_connections import request_bytes, until

from octavo.api.connection import MAX_UNSENT_BYTES
from octavo.records import RequestOutput

HIGH_WATER_BYTES = 1 << 16
"""Where uvicorn stops to take more for a connection."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


class CountingEngine(FakeEngine):
    """Answers with the numbers from 1 on, one a token."""

    async def _outputs(self, *arguments: Any) -> AsyncGenerator[RequestOutput, None]:
        count = 0
        async for output in super()._outputs(*arguments):
            count += 1
            for completion in output.outputs:
                completion.text = f"{count} "
            yield output


def body_of(path: str, num_tokens: int, **fields: object) -> dict[str, Any]:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    return {**prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": True, **fields}


def numbers(num_tokens: int) -> str:
    return "".join(f"{number} " for number in range(1, num_tokens + 1))


def texts_of(answer: bytes) -> dict[int, str]:
    """The text of each choice of a stream that ended well, from the bytes on the wire."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    data = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        piece, rest = rest[: int(size, 16)], rest[int(size, 16) :]
        assert rest.startswith(b"\r\n")
        rest = rest[2:]
        data += piece
    *events, done, end = data.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    texts: dict[int, str] = {}
    for event in events:
        for choice in json.loads(event.removeprefix(b"data: "))["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


def deaf_connection(server: RunningServer, request: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect(server.address)
    connection.sendall(request)
    return connection


def num_buffered(server: RunningServer) -> list[int]:
    return [connection.transport.get_write_buffer_size() for connection in list(server.server.server_state.connections)]


@pytest.mark.long
@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1}, {"stream_options": {"include_usage": True}}])
def test_a_reader_that_stops_and_goes_on_misses_nothing(
    start_server: StartServer, path: str, fields: dict[str, Any]
) -> None:
    server = start_server(CountingEngine())
    num_tokens = 3000
    request = request_bytes(body_of(path, num_tokens, **fields), path).replace(b"Host", b"Connection: close\r\nHost")
    with deaf_connection(server, request) as connection:
        # While it stops, the server holds back; as it reads, the server goes between that and writing at once.
        until(lambda: max(num_buffered(server), default=0) > HIGH_WATER_BYTES)
        received = b""
        while piece := connection.recv(16384):
            received += piece
    assert texts_of(received) == dict.fromkeys(range(fields.get("n", 1)), numbers(num_tokens))


@pytest.mark.long
def test_clients_that_do_not_read_are_bounded_cut_and_hold_up_nobody(start_server: StartServer) -> None:
    server = start_server(CountingEngine(), stream_write_timeout=4)
    request = request_bytes(body_of(COMPLETIONS, 100_000))
    deaf = [deaf_connection(server, request) for _ in range(30)]
    try:
        until(lambda: sum(size > HIGH_WATER_BYTES for size in num_buffered(server)) == len(deaf))
        answer = server.client.post(COMPLETIONS, json=body_of(COMPLETIONS, 500) | {"stream": False})
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        # A full buffer takes no more: an event or two beyond the mark, however long the answers are.
        assert max(num_buffered(server)) < HIGH_WATER_BYTES + 4096
        until(lambda: server.engine.num_running == 0)
        assert server.engine.num_aborted == len(deaf)
        until(lambda: len(server.server.server_state.connections) <= 1)
        for connection in deaf:
            assert num_received(connection) < HIGH_WATER_BYTES + MAX_UNSENT_BYTES + 200_000
    finally:
        for connection in deaf:
            connection.close()


def num_received(connection: socket.socket) -> int:
    """Bytes that a connection still brings before its end."""
    total = 0
    try:
        while piece := connection.recv(65536):
            total += len(piece)
    except ConnectionResetError:
        pass
    return total


def test_many_streams_at_once(start_server: StartServer) -> None:
    server = start_server(CountingEngine(step_seconds=0.002))
    request = request_bytes(body_of(CHAT, 30), CHAT).replace(b"Host", b"Connection: close\r\nHost")

    async def one() -> dict[int, str]:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request)
        received = await reader.read()
        writer.close()
        return texts_of(received)

    async def all_of_them() -> list[dict[int, str]]:
        return await asyncio.gather(*[one() for _ in range(200)])

    assert asyncio.run(all_of_them()) == [{0: numbers(30)}] * 200
    assert server.engine.num_aborted == 0
