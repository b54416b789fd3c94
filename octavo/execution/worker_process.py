"""Entry point of a worker process: runs the steps that rank 0 sends it.

Started as ``python -m octavo.execution.worker_process FD`` by :class:`octavo.execution.peer_process.PeerProcess`, with
one end of a socket pair. Ends when its standard input closes.
"""

import logging
import signal
import socket
import sys

import msgspec
import torch.distributed as dist

from octavo.execution import messages
from octavo.execution.peer_process import Channel
from octavo.execution.serve_worker import make_worker, serve
from octavo.garbage import freeze_until_exit
from octavo.parent import end_with_parent
from octavo.telemetry.logs import configure_logging


def main() -> int:
    """Serve rank 0; returns the exit status."""
    # Rank 0's process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    launch = msgspec.msgpack.decode(channel.receive(), type=messages.WorkerLaunch)
    log = launch.settings.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    worker = make_worker(launch, channel.send)
    if worker is None:
        return 1
    channel.send(messages.encode(messages.Reply()))
    worker.connect(dist.FileStore(launch.store, launch.size), is_local=True)
    channel.send(messages.encode(messages.Reply()))
    freeze_until_exit()
    try:
        while True:
            serve(worker, channel.receive(), channel.send)
    except ConnectionError:
        return 0
    except Exception:
        logging.getLogger("octavo.execution.worker_process").exception("the worker of rank %d failed", launch.rank)
        return 1


if __name__ == "__main__":
    sys.exit(main())
