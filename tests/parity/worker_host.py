"""A process that is a worker again and again: importing takes longer than all that tests ask of it.

Run as ``python worker_host.py SOCKET``; it ends when its standard input closes.
"""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # functions that tests let workers call

from octavo.execution.messages import WorkerLaunch
from octavo.execution.peer_process import Channel
from octavo.execution.serve_worker import run_worker
from octavo.parent import end_with_parent


def main() -> None:
    end_with_parent()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        while True:
            run_worker(Channel(listener.accept()[0]))


class HostedPeer:
    """A worker in a host's process, in place of :class:`octavo.execution.peer_process.PeerProcess`."""

    address = ""

    def __init__(self, launch: WorkerLaunch) -> None:
        import msgspec

        self.rank = launch.rank
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        self._channel = Channel(connection)
        self.send, self.receive, self.close = self._channel.send, self._channel.receive, self._channel.close
        self.send(msgspec.msgpack.encode(launch))

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Nobody ends it."""


if __name__ == "__main__":
    main()
