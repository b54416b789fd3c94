"""Entry point of a worker process.

Started as ``python -m octavo.execution.worker_process FD`` by :class:`octavo.execution.peer_process.PeerProcess`, with
one end of a socket pair. Ends when its standard input closes.
"""

import signal
import socket
import sys

from octavo.execution.peer_process import Channel
from octavo.execution.serve_worker import run_worker
from octavo.garbage import freeze_until_exit
from octavo.parent import end_with_parent


def main() -> int:
    """Serve rank 0; returns the exit status."""
    # Rank 0's process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    freeze_until_exit()
    return run_worker(Channel(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    sys.exit(main())
