"""Fixtures: servers around an engine without a model, and a browser."""

from collections.abc import Iterator

import pytest
from browser_fixtures import browser, open_page
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer, start

__all__ = ["browser", "open_page"]


@pytest.fixture(scope="session")
def stopped_servers() -> Iterator[list[RunningServer]]:
    """Servers told to end; that all did is seen once, so that no test waits for its own."""
    servers: list[RunningServer] = []
    yield servers
    for server in servers:
        server.assert_ends()


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
