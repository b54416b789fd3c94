"""Clients that leave: their requests end at once, whether they streamed or not."""

import asyncio
import socket
from typing import Any

import httpx
import pytest
from server_process import MODEL, PATIENCE, ServerProcess, until

LONG = {"model": MODEL, "prompt": "Tell me a very long story.", "max_tokens": 480, "ignore_eos": True}


@pytest.mark.parametrize("changes", [{"stream": True}, {}, {"n": 3}, {"n": 2, "stream": True}], ids=str)
def test_request_of_a_client_that_left_is_aborted(server: ServerProcess, changes: dict[str, Any]) -> None:
    num_sequences = changes.get("n", 1)

    async def leave_when_running() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
            asking = asyncio.create_task(http.post("/v1/completions", json={**LONG, **changes}))
            while server.metric("num_requests_running") < num_sequences:
                assert not asking.done()
                await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    num_before = server.metric("generation_tokens_total")
    asyncio.run(leave_when_running())
    until(server.is_idle)
    assert server.metric("generation_tokens_total") - num_before < 480 * num_sequences


def test_connection_that_breaks_off(server: ServerProcess) -> None:
    """No farewell: the socket is reset in mid-stream."""
    body = httpx.Request("POST", server.url, json={**LONG, "stream": True}).read()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    num_before = server.metric("generation_tokens_total")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + b"\r\n" + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(server.is_idle)
    assert server.metric("generation_tokens_total") - num_before < 480
    assert server.health == 200


def test_many_leave_and_the_others_get_their_answers(server: ServerProcess) -> None:
    async def one(http: httpx.AsyncClient, number: int) -> int | None:
        body = {**LONG, "max_tokens": 8 if number % 3 else 480, "stream": bool(number % 2), "seed": number}
        if number % 3:
            return (await http.post("/v1/completions", json=body)).status_code
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.post("/v1/completions", json=body), 0.05 + 0.02 * number)
        return None

    async def run() -> list[int | None]:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
            return await asyncio.gather(*[one(http, number) for number in range(30)])

    num_before = server.metric("generation_tokens_total")
    statuses = asyncio.run(run())
    assert [status for status in statuses if status is not None] == [200] * 20
    until(server.is_idle)
    assert server.metric("generation_tokens_total") - num_before < 480 * 10
