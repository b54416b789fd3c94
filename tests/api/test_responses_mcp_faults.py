"""MCP servers that misbehave fail their calls, in time, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from octavo.api.responses import mcp_connection
from octavo.api.responses.mcp import McpError, McpServer
from octavo.api.responses.mcp_connection import McpConnection

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def against(answer: Answer, path: str = "/mcp") -> str:
    """What a connection to such a server says."""
    tasks: set[asyncio.Task[None]] = set()

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = McpConnection(McpServer(f"http://127.0.0.1:{port}{path}"), {})
    try:
        with pytest.raises(McpError) as failure:
            await connection.list_tools()
        return str(failure.value)
    finally:
        await connection.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
def test_silence_ends_in_time(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(mcp_connection, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(mcp_connection, "CLOSE_SECONDS", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    assert "did not answer within" in asyncio.run(against(silent, path))


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n!!!!",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
def test_nonsense_is_an_error(monkeypatch: pytest.MonkeyPatch, path: str, data: bytes) -> None:
    monkeypatch.setattr(mcp_connection, "CONNECT_SECONDS", 5.0)

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    assert asyncio.run(against(odd, path)).startswith("The MCP server")


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
def test_redirects_elsewhere_are_not_followed(path: str) -> None:
    async def run() -> None:
        visitors: list[object] = []

        async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            visitors.append(writer)
            writer.close()

        elsewhere = await asyncio.start_server(trap, "127.0.0.1", 0)
        location = f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/secret"

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 307 There\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()

        assert (await against(redirect, path)).startswith("The MCP server")
        elsewhere.close()
        assert not visitors

    asyncio.run(run())


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "MAX_ANSWER_BYTES", 1 << 16)
    num_sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while num_sent < 1 << 26:
            writer.write(b" " * 8192)
            num_sent += 8192
            await writer.drain()

    assert asyncio.run(against(endless)).startswith("The MCP server")
    assert num_sent < 1 << 26
