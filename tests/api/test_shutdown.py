"""SIGTERM lets requests finish, but not for ever."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import REPLY, FakeEngine
from running_server import PATIENCE, StartServer
from test_connections import ENDLESS, request_bytes, until

from octavo.api.server import bind_sockets
from octavo.config import ServerSettings
from octavo.errors import ConfigError
from octavo.records import RequestOutput


def in_background(call: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    responses: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: responses.append(call()))
    thread.start()
    return thread, responses


class HeldEngine(FakeEngine):
    """Begins each answer and gives it once it may, so that a test can look around meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    async def _outputs(self, *request: Any) -> AsyncGenerator[RequestOutput, None]:
        await asyncio.to_thread(self.may_answer.wait, PATIENCE)
        async for output in super()._outputs(*request):
            yield output


def test_running_requests_finish_and_new_ones_are_refused(start_server: StartServer) -> None:
    engine = HeldEngine()
    server = start_server(engine, shutdown_timeout=PATIENCE)
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as idle:
        idle.get("/health")
        thread, responses = in_background(lambda: server.client.post("/v1/completions", json={"prompt": "hi"}))
        until(lambda: server.engine.num_running == 1)
        server.send_signal(signal.SIGTERM)
        until(lambda: server.server._drain.is_draining)
        refused = idle.post("/v1/completions", json={"prompt": "hi"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["message"] == "The server is shutting down."
    for _ in range(3):  # on new connections as well
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "hi"}, timeout=PATIENCE)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert httpx.get(f"{server.url}/health", timeout=PATIENCE).status_code == 503
    engine.may_answer.set()
    thread.join(PATIENCE)
    assert responses[0].status_code == 200
    assert responses[0].json()["choices"][0]["text"].startswith(REPLY[:5])
    server.assert_ends()
    with pytest.raises(OSError):
        socket.create_connection(server.address, timeout=1)


def test_requests_that_are_refused_do_not_prolong_the_end(start_server: StartServer) -> None:
    engine = HeldEngine()
    server = start_server(engine, shutdown_timeout=600, request_timeout=600)
    thread, responses = in_background(lambda: server.client.post("/v1/completions", json={"prompt": "hi"}))
    until(lambda: server.engine.num_running == 1)
    server.send_signal()
    until(lambda: server.server._drain.is_draining)
    # One that never ends sending its request.
    with socket.create_connection(server.address) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        engine.may_answer.set()
        thread.join(PATIENCE)
        assert responses[0].status_code == 200
        server.assert_ends()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_real_signal_ends_the_program_in_order(number: int) -> None:
    program = Path(__file__).with_name("serve_fake.py")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        url, body = f"{address}/v1/completions", {"prompt": "hi", "stream": True}
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(number)
            rest = [line for line in lines if line]
        assert "error" not in first
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert process.stdout.read() == "ended\n"
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def test_health_tells_that_the_server_drains(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.02), shutdown_timeout=PATIENCE)
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as idle, socket.create_connection(server.address) as busy:
        idle.get("/health")
        busy.sendall(request_bytes(ENDLESS))
        until(lambda: server.engine.num_running == 1)
        server.send_signal()
        until(lambda: server.server._drain.is_draining)
        assert idle.get("/health").status_code == 503


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_takes_too_long_is_aborted_in_words(start_server: StartServer, is_streamed: bool) -> None:
    server = start_server(FakeEngine(step_seconds=0.01), shutdown_timeout=0.3)
    body = {**ENDLESS, "stream": is_streamed}
    thread, responses = in_background(lambda: server.client.post("/v1/completions", json=body))
    until(lambda: server.engine.num_running == 1)
    server.send_signal()
    thread.join(PATIENCE)
    if is_streamed:
        *_, last, done = [line for line in responses[0].text.splitlines() if line]
        assert done == "data: [DONE]"
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert responses[0].status_code == 503
        error = responses[0].json()["error"]
    assert error["message"] == "The server is shutting down."
    assert server.engine.num_aborted == 1
    server.assert_ends()


def test_a_second_interrupt_ends_at_once(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.01), shutdown_timeout=600)
    with socket.create_connection(server.address) as connection:
        connection.sendall(request_bytes({**ENDLESS, "stream": True}))
        until(lambda: server.engine.num_running == 1)
        server.send_signal(signal.SIGINT)
        until(lambda: server.server._drain.is_draining)
        server.send_signal(signal.SIGINT)
        server.assert_ends()
    assert server.engine.num_running == 0


def test_an_unread_answer_does_not_delay_the_end(start_server: StartServer) -> None:
    server = start_server(shutdown_timeout=0.2, stream_write_timeout=600)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(request_bytes({**ENDLESS, "stream": True}))
        until(lambda: server.engine.num_running == 1)
        server.send_signal()
        server.assert_ends()


def test_idle_connections_do_not_delay_the_end(start_server: StartServer) -> None:
    server = start_server(shutdown_timeout=600, request_timeout=600)
    server.client.get("/health")
    with socket.create_connection(server.address):
        server.send_signal()
        server.assert_ends()


def test_a_taken_port_is_told(start_server: StartServer) -> None:
    host, port = start_server().address
    with pytest.raises(ConfigError, match=f"Cannot listen on {host}:{port}"):
        bind_sockets(ServerSettings(host=host, port=port))


def test_a_unix_socket(start_server: StartServer, tmp_path: Any) -> None:
    path = str(tmp_path / "octavo.sock")
    start_server(uds=path)
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://x", timeout=PATIENCE) as client:
        assert client.get("/health").status_code == 200
