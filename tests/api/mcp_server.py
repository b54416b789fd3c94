"""A real MCP server on a loopback port, with a few tools."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from running_server import PATIENCE
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass
class RunningMcpServer:
    """Attributes tests look at: ``calls`` (tool and arguments), ``headers`` of the requests."""

    url: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def make_server(seen: RunningMcpServer) -> MCPServer:
    """The server, which writes down what is called."""
    server = MCPServer("tests")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        seen.calls.append(("add", (a, b)))
        return str(a + b)

    @server.tool()
    def remove(name: str) -> str:
        """Remove something."""
        seen.calls.append(("remove", name))
        return f"removed {name}"

    @server.tool()
    def fail() -> str:
        """Never works."""
        raise ToolError("out of order")

    return server


class Recorder:
    """Writes down the headers of each request."""

    def __init__(self, app: ASGIApp, seen: RunningMcpServer) -> None:
        self._app = app
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._seen.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
        await self._app(scope, receive, send)


@contextmanager
def running_mcp_server(path: str = "/mcp") -> Iterator[RunningMcpServer]:
    """Serve until the test ends, at ``/mcp`` over streamable HTTP or at ``/sse`` over server-sent events."""
    seen = RunningMcpServer()
    AppStatus.should_exit = False  # set when any server of this process is told to end
    server_app = make_server(seen)
    app = Recorder(server_app.streamable_http_app() if path == "/mcp" else server_app.sse_app(), seen)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    is_started = threading.Event()
    startup = server.startup

    async def started(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        is_started.set()

    server.startup = started  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert is_started.wait(PATIENCE)
    seen.url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    yield seen
    server.should_exit = True
    thread.join(PATIENCE)
