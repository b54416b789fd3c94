"""Entry point of a worker process.

Started as ``python -m octavo.execution.worker_process FD FOLDER`` by ``peer_process.py``, with one end of a socket pair
and the folder of the store. Ends when its standard input closes, and removes the folder however it ends.
"""

import shutil
import signal
import socket
import sys
from functools import partial

from octavo.execution.peer_process import Channel
from octavo.execution.serve_worker import run_worker
from octavo.garbage import freeze_until_exit
from octavo.parent import end_with_parent


def main() -> int:
    """Serve rank 0; returns the exit status."""
    # Rank 0's process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    remove_folder = partial(shutil.rmtree, sys.argv[2], ignore_errors=True)
    end_with_parent(remove_folder)
    freeze_until_exit()
    try:
        return run_worker(Channel(socket.socket(fileno=int(sys.argv[1]))))
    finally:
        # A rank 0 that is killed closes sockets and standard input, and the first to close ends this process.
        remove_folder()


if __name__ == "__main__":
    sys.exit(main())
