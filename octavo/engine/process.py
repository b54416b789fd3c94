"""Entry point of the engine process.

Started as ``python -m octavo.engine.process`` by :class:`octavo.engine.child.EngineChild`. It imports, then reads its
:class:`Launch` as one line of JSON from standard input. Standard input stays open for as long as the parent lives; when
it closes, this process ends.
This module defines nothing that logs or is imported elsewhere, since its name is ``__main__`` at run time.
"""

import signal
import sys

import msgspec

from octavo.engine.state import Launch
from octavo.garbage import garbage_collection_off
from octavo.parent import end_with_parent
from octavo.telemetry.logs import configure_logging


def main() -> int:
    """Read the launch message and serve; returns the exit status."""
    # Ctrl-C in a terminal, and service managers, signal the whole process group, but running requests should finish
    # first. The supervisor ends this process by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with garbage_collection_off():
        from octavo.engine.server import EngineServer
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # it is not needed after all
    launch = msgspec.json.decode(line, type=Launch)
    end_with_parent()
    log = launch.settings.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    return EngineServer(launch).run()


if __name__ == "__main__":
    sys.exit(main())
