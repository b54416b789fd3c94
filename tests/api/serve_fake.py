"""A program that serves the fake engine until a signal comes; prints its address first, ``ended`` last."""

import asyncio

import uvloop
from fake_engine import FakeEngine

from octavo.api.server import serve
from octavo.config import ServerSettings


def main() -> None:
    """Serve slowly, so that a test can act meanwhile."""
    settings = ServerSettings(host="127.0.0.1", port=0, shutdown_timeout=20)
    engine = FakeEngine(step_seconds=0.05)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(engine, settings, on_ready=lambda address: print(address, flush=True)))
    print("ended")


if __name__ == "__main__":
    main()
