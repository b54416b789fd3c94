"""One server, around an engine without a model, for the clients of all modules."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

sys.path.append(str(Path(__file__).parents[1] / "api"))

from scripted_engine import ScriptedEngine

from octavo.api.server import bind_sockets, describe_address, make_server
from octavo.config import ServerSettings


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Where the server listens."""
    settings = ServerSettings(host="127.0.0.1", port=0, disable_uvicorn_access_log=True, tool_call_parser="hermes")
    listeners = bind_sockets(settings)
    is_ready = threading.Event()
    server = make_server(ScriptedEngine(), settings, is_ready.set)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(listeners))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_ready.wait(60)
    yield describe_address(listeners[0], settings)
    server.should_exit = server.force_exit = True
    thread.join(60)


@pytest.fixture(scope="session")
def base_url(server_url: str) -> str:
    """What clients of OpenAI's protocol are given."""
    return f"{server_url}/v1"
