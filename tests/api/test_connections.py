"""Clients that leave, dawdle or say nothing cost us nothing for long."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest
from fake_engine import FakeEngine
from running_server import PATIENCE, RunningServer, StartServer

from octavo.api.connection import MAX_HEADER_BYTES

ENDLESS = {"prompt": "hi", "max_tokens": 100_000, "ignore_eos": True}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def request_bytes(body: object, path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def read_all(connection: socket.socket) -> bytes:
    """What the server sends before it closes; a reset counts as closing."""
    connection.settimeout(PATIENCE)
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"]])
def test_a_client_that_leaves_aborts_its_request(
    start_server: StartServer, is_streamed: bool, prompt: str | list[str]
) -> None:
    num_prompts = 1 if isinstance(prompt, str) else len(prompt)
    server = start_server(FakeEngine(step_seconds=0.01))
    with socket.create_connection(server.address) as connection:
        connection.sendall(request_bytes({**ENDLESS, "prompt": prompt, "stream": is_streamed}))
        until(lambda: server.engine.num_running == num_prompts)
    until(lambda: server.engine.num_running == 0)
    assert server.engine.num_aborted == num_prompts


def test_a_chat_client_that_leaves_midway(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.005))
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    until(lambda: server.engine.num_aborted == 1)


def test_a_client_that_does_not_read_is_cut(start_server: StartServer) -> None:
    server = start_server(stream_write_timeout=0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(request_bytes({**ENDLESS, "stream": True}))
        until(lambda: bool(server.engine.calls))
        assert server.client.get("/health").status_code == 200
        until(lambda: server.engine.num_aborted == 1)
        until(lambda: len(server.server.server_state.connections) == 1)
        received = read_all(connection)
    assert b"[DONE]" not in received
    # What piled up was bounded by buffers of the socket and of the server, not by the length of the answer.
    assert len(received) < 20_000_000


def test_a_client_that_reads_a_byte_at_a_time_is_cut(start_server: StartServer) -> None:
    server = start_server(stream_write_timeout=0.5)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(request_bytes({**ENDLESS, "stream": True}))
        until(lambda: bool(server.engine.calls))

        def is_cut() -> bool:
            time.sleep(0.02)
            with contextlib.suppress(ConnectionResetError):
                connection.recv(1)
            return server.engine.num_aborted == 1

        until(is_cut)


def test_a_slow_reader_of_a_whole_answer_is_cut(start_server: StartServer) -> None:
    server = start_server(stream_write_timeout=0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(request_bytes({"prompt": ["x" * 3000] * 200, "max_tokens": 1, "echo": True}))
        until(lambda: len(server.engine.calls) == 200)
        until(lambda: not server.server.server_state.connections)
        assert len(read_all(connection)) < 200 * 3000


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_the_end_of_an_answer_left_unread(start_server: StartServer, header: bytes) -> None:
    server = start_server(stream_write_timeout=0.3)
    server.server.config.timeout_keep_alive = 1
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        # Less than would make the server pause, more than the kernel takes.
        request = request_bytes({"prompt": ["x" * 3000] * 38, "max_tokens": 1, "echo": True})
        connection.sendall(request.replace(b"Host: x\r\n", b"Host: x\r\n" + header))
        until(lambda: len(server.engine.calls) == 38)
        until(lambda: not server.server.server_state.connections)


def test_a_reader_that_catches_up_is_not_cut(start_server: StartServer) -> None:
    server = start_server(stream_write_timeout=PATIENCE)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(request_bytes({**ENDLESS, "max_tokens": 5_000, "stream": True}))
        until(lambda: server.engine.num_running == 1)
        time.sleep(0.2)
        received = b""
        while b"[DONE]" not in received[-100:]:
            piece = connection.recv(65536)
            assert piece
            received += piece
    assert server.engine.num_aborted == 0


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", b"HTTP/1.1 408 "),
        (request_bytes({"prompt": "hi"})[:-4], b"HTTP/1.1 408 "),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n',
            b"HTTP/1.1 408 ",
        ),
    ],
)
def test_a_request_that_never_comes(start_server: StartServer, sent: bytes, answer: bytes) -> None:
    server = start_server(request_timeout=0.3)
    received = b""
    for _ in range(10):  # On a busy machine the time may be over before anything has arrived.
        with socket.create_connection(server.address) as connection:
            connection.sendall(sent)
            received = read_all(connection)
        if bool(received) == bool(answer):
            break
    assert received.startswith(answer)
    assert bool(received) == bool(answer)
    until(lambda: not server.server.server_state.connections and not server.server.server_state.tasks)


def test_a_request_that_trickles(start_server: StartServer) -> None:
    server = start_server(request_timeout=0.4)
    received = b""
    while not received:  # On a busy machine the time may be over before the first byte has arrived.
        with socket.create_connection(server.address) as connection:
            connection.settimeout(0.02)
            for value in request_bytes({"prompt": "x" * 2000}):
                try:
                    connection.send(bytes([value]))
                    received += connection.recv(4096)
                    break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == 408


def test_bytes_after_a_request_do_not_hold_the_connection(start_server: StartServer) -> None:
    server = start_server(request_timeout=0.3)
    server.server.config.timeout_keep_alive = 1
    with socket.create_connection(server.address) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\r\n")
        assert read_all(connection) == b""


def test_a_long_answer_is_no_late_request(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.05), request_timeout=0.2)
    for _ in range(10):
        response = server.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 12})
        if server.engine.calls:  # On a busy machine the request itself may be late.
            break
    assert response.status_code == 200


def test_a_second_request_on_a_busy_connection_is_not_late(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.1), request_timeout=1)
    with socket.create_connection(server.address) as connection:
        connection.sendall(request_bytes({"prompt": "hi", "max_tokens": 12}))
        until(lambda: server.engine.num_running == 1)
        second = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(second)
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 200 ") == 2


def test_endless_headers(start_server: StartServer) -> None:
    server = start_server()
    with socket.create_connection(server.address) as connection:
        head = b"GET /health HTTP/1.1\r\nX-Long: "
        connection.sendall(head + b"a" * (MAX_HEADER_BYTES + 1 - len(head)))
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http(server: RunningServer) -> None:
    with socket.create_connection(server.address) as connection:
        connection.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == 400


def test_many_at_once(server: RunningServer) -> None:
    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            body = {"prompt": ["hi"] * 4, "max_tokens": 3}
            return await asyncio.gather(*[client.post("/v1/completions", json=body) for _ in range(50)])

    answers = asyncio.run(run())
    assert all(len(answer.json()["choices"]) == 4 for answer in answers)
