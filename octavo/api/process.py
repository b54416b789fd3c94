"""One of several API processes. Started by :mod:`octavo.api.launch` with an ``ApiLaunch`` on standard input."""

import asyncio
import socket
import sys

import msgspec
import uvloop

from octavo.api.launch import ApiLaunch, first_name, serve_engine
from octavo.async_llm import AsyncLLM
from octavo.errors import OctavoError
from octavo.parent import end_with_parent
from octavo.telemetry.logs import configure_logging


async def _serve(launch: ApiLaunch) -> int:
    engine = AsyncLLM(
        launch.settings,
        chat_template=launch.server.chat_template,
        address=launch.address,
        index=launch.index,
        served_name=first_name(launch.server),
        settles_reasoning=False,
    )
    loading = asyncio.create_task(engine.start())
    sockets = [socket.socket(fileno=fd) for fd in launch.fds]
    return await serve_engine(engine, loading, launch.server, sockets, launch.started)


def main() -> int:
    """Entry of the process."""
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=ApiLaunch)
    end_with_parent()
    log = launch.settings.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(launch))
    except OctavoError as error:
        if launch.index == 0:  # the others find the same
            print(f"octavo: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
