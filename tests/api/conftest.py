"""A real server on a free port, around an engine without a model."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
import uvloop
from browser_fixtures import browser, open_page
from fake_engine import FakeEngine

from octavo.api.server import DrainingServer, bind_sockets, describe_address, make_server
from octavo.config import ServerSettings

__all__ = ["RunningServer", "StartServer", "browser", "open_page", "server", "start", "start_server", "stopped_servers"]


@dataclass
class RunningServer:
    """A server in a thread of its own."""

    engine: FakeEngine
    server: DrainingServer
    url: str
    thread: threading.Thread
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=20)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for plain sockets."""
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        """What the process would do on a signal."""
        self.server.handle_exit(number, None)

    def stop(self) -> None:
        """Tell it to end now."""
        self.client.close()
        self.server.should_exit = self.server.force_exit = True


StartServer = Callable[..., RunningServer]


def start(engine: FakeEngine, **settings: object) -> RunningServer:
    """Start a server and wait until it listens."""
    all_settings = ServerSettings(host="127.0.0.1", port=0, disable_uvicorn_access_log=True, **settings)
    listeners = bind_sockets(all_settings)
    # Connections inherit this: what a client leaves unread shows soon.
    listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    is_ready = threading.Event()
    server = make_server(engine, all_settings, is_ready.set)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(listeners))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_ready.wait(10)
    return RunningServer(engine, server, describe_address(listeners[0], all_settings), thread)


@pytest.fixture(scope="session")
def stopped_servers() -> Iterator[list[RunningServer]]:
    """Servers told to end; that all did is seen once, so that no test waits for its own."""
    servers: list[RunningServer] = []
    yield servers
    for server in servers:
        server.thread.join(10)
        assert not server.thread.is_alive()


@pytest.fixture
def start_server(stopped_servers: list[RunningServer]) -> Iterator[StartServer]:
    """Start servers with settings of the test's own; all are stopped at its end."""
    servers: list[RunningServer] = []

    def start_one(engine: FakeEngine | None = None, **settings: object) -> RunningServer:
        servers.append(start(engine or FakeEngine(), **settings))
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()
        stopped_servers.append(server)


@pytest.fixture(scope="module")
def _shared_server(stopped_servers: list[RunningServer]) -> Iterator[RunningServer]:
    server = start(FakeEngine())
    yield server
    server.stop()
    stopped_servers.append(server)


@pytest.fixture
def server(_shared_server: RunningServer) -> RunningServer:
    """A server with default settings that the tests of a module share."""
    _shared_server.engine.calls.clear()
    return _shared_server
