"""Servers that the end-to-end tests share."""

from collections.abc import Callable, Iterator

import pytest
from server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One server for everything that leaves a server as it was."""
    running = ServerProcess()
    try:
        running.wait_until_healthy()
        yield running
    finally:
        running.stop()


@pytest.fixture
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers with flags of the test's own, and waits until they serve."""
    started: list[ServerProcess] = []

    def start(*flags: str, **settings: str) -> ServerProcess:
        started.append(ServerProcess(*flags, **settings))
        started[-1].wait_until_healthy()
        return started[-1]

    yield start
    for running in started:
        running.stop()
