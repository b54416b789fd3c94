"""A server with a fake engine, on a thread of the test's own process."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import msgspec
import uvloop
from fake_engine import FakeEngine

from octavo.api.server import DrainingServer, bind_sockets, describe_address, make_server
from octavo.config import ModelSettings, ServerSettings

PATIENCE = 60.0
"""Seconds after which a test that waits for something gives up; a busy machine is slow."""


@dataclass
class RunningServer:
    """A server in a thread of its own."""

    engine: FakeEngine
    server: DrainingServer
    url: str
    thread: threading.Thread
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for plain sockets."""
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        """What the process would do on a signal."""
        self.server.handle_exit(number, None)

    def assert_ends(self) -> None:
        """Wait for the end of what it was told to end."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def stop(self) -> None:
        """Tell it to end now."""
        self.client.close()
        self.server.should_exit = self.server.force_exit = True


StartServer = Callable[..., RunningServer]


def start(engine: FakeEngine, **settings: object) -> RunningServer:
    """Start a server and wait until it listens."""
    of_model = {name: settings.pop(name) for name in ModelSettings.__struct_fields__ if name in settings}
    given = {name: value for name, value in of_model.items() if value is not None}
    engine.model_settings = msgspec.structs.replace(engine.model_settings, **given)
    # An idle connection that the server closes just as a test goes on with it would be an error for the test.
    settings.setdefault("http_keep_alive_timeout", 600)
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
    assert is_ready.wait(PATIENCE)
    return RunningServer(engine, server, describe_address(listeners[0], all_settings), thread)
