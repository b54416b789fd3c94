"""Workers in processes of this machine, each at the other end of a socket pair."""

import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch.distributed as dist

from octavo.config import EngineConfig
from octavo.execution import messages
from octavo.execution.distributed import DistributedExecutor
from octavo.execution.worker import Worker
from octavo.parallel import ProcessGroup
from octavo.records import Plan

_LENGTH = struct.Struct("<Q")
_END_SECONDS = 5.0


class Channel:
    """Messages over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        """Send a message.

        Raises:
            OSError: the other end is closed.
        """
        self._connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> bytearray:
        """Wait for a message.

        Raises:
            OSError: the other end is closed.
        """
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(size)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise ConnectionError("the other end is closed")
            view = view[count:]
        return data


class PeerProcess:
    """A worker process; a :class:`octavo.execution.distributed.Peer`."""

    def __init__(self, launch: messages.WorkerLaunch) -> None:
        self.rank = launch.rank
        self._is_closing = False
        own, others = socket.socketpair()
        folder = Path(launch.store).parent
        with others:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo.execution.worker_process", str(others.fileno()), str(folder)],
                stdin=subprocess.PIPE,
                pass_fds=[others.fileno()],
            )
        self._channel = Channel(own)
        self.send(msgspec.msgpack.encode(launch))

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """See :meth:`Peer.send`."""
        self._channel.send(data)

    def receive(self) -> bytearray:
        """See :meth:`Peer.receive`."""
        return self._channel.receive()

    def watch(self, on_end: Callable[[str], None]) -> None:
        """See :meth:`Peer.watch`."""

        def wait() -> None:
            status = self._process.wait()
            if not self._is_closing:
                on_end(f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}")

        threading.Thread(target=wait, name="worker-watch", daemon=True).start()

    def close(self) -> None:
        """See :meth:`Peer.close`. The process ends by itself when its standard input closes."""
        self._is_closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_processes(
    worker: Worker, settings: EngineConfig, plan: Plan, folder: str | None, size: int
) -> DistributedExecutor:
    """Start the other ranks in processes of this machine.

    Args:
        worker: rank 0.
        plan: to load the model by.
        folder: updated weights; None for the model's own.

    Raises:
        OctavoError: one of them cannot start.
    """
    # Nobody else may write there, or name the sockets of other ranks. NCCL comes back to it, so it stays.
    private = tempfile.TemporaryDirectory(prefix="octavo-ranks-", ignore_cleanup_errors=True)
    store = str(Path(private.name) / "store")
    plain = messages.as_plain(plan)
    peers = [PeerProcess(messages.WorkerLaunch(settings, plain, rank, size, folder, store)) for rank in range(1, size)]

    def join(worker: Worker) -> ProcessGroup:
        return worker.connect(dist.FileStore(store, size), is_local=True)

    return DistributedExecutor(worker, peers, join, private.cleanup)
