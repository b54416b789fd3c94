"""Processes that compile kernels for this one.

A third of a compilation is Python's, which threads of one process do one after the other. The processes are forks of
one that has imported all kernels (``compile_process.py``); they fill Triton's cache on disk, from which this process
loads. That one is started as a new program, not forked: this process has threads, a device and connections, and may be
a user's own. Whatever goes wrong with a process, its kernels are compiled here.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TypeVar

from octavo.kernels.triton.kept_kernels import is_unused, kernel_folder
from octavo.platforms import CpuPlatform, available_cores, num_devices

T = TypeVar("T")

READY, COMPILED, FAILED = b"ready", b"compiled", b"failed"
"""What a process sends: once, and for each description."""

LONGEST_MESSAGE = 1 << 16
"""Bytes of the longest description that is sent."""

_PROGRAM = str(Path(__file__).with_name("compile_process.py"))
_ROOT = str(Path(__file__).parents[3])
_MAX_PROCESSES = 24
"""A model has 30 to 60 kernels, and some take ten times as long as others."""
_BYTES_PER_PROCESS = 1 << 29
"""Three times what a process takes, without its assembler."""
_START_SECONDS, _COMPILE_SECONDS = 60.0, 120.0
_NUM_HERE, _NUM_HERE_ALONE = 2, 12
"""So many kernels are compiled in this process at a time, while the others start and if none can."""


class _Here(Enum):
    """A thread of this process in place of another process."""

    WHILE_STARTING = auto()
    FOR_GOOD = auto()


class _Places:
    """Who may compile the next kernels, and threads that wait for that: for long kernels first, then in their order."""

    def __init__(self) -> None:
        self._places: deque[socket.socket | _Here] = deque()
        self._waiting: list[tuple[bool, int]] = []
        self._numbers = count()
        self._changed = threading.Condition()

    def put(self, place: socket.socket | _Here) -> None:
        with self._changed:
            self._places.append(place)
            self._changed.notify_all()

    def take(self, *, is_long: bool) -> socket.socket | _Here:
        """The next place, once there is one and nobody is before the caller."""
        with self._changed:
            own = not is_long, next(self._numbers)
            heappush(self._waiting, own)
            self._changed.wait_for(lambda: self._places and self._waiting[0] == own)
            heappop(self._waiting)
            self._changed.notify_all()
            return self._places.popleft()


class CompileWorkers:
    """Compiles kernels in other processes while some are there, else in threads of this one.

    Attributes:
        folder: of kept kernels; None for that of Triton's variable.

    Args:
        num_devices: of this machine, whose engines may all start at the same time.
    """

    def __init__(self, folder: Path | None, num_devices: int) -> None:
        self.folder = folder
        self._num_devices = num_devices
        self._sockets: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None
        # Who may compile the next kernel. A process that fails leaves its place to a thread, so there is always one.
        self._free = _Places()
        self._lock = threading.Lock()
        self._is_started = False
        self._has_processes = False

    def start(self, num_here: int = _NUM_HERE) -> None:
        """Start the processes, unless that was done; they take kernels a second later.

        Args:
            num_here: kernels that are compiled in this process at a time until then.
        """
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
            with suppress(OSError):
                if sys.executable:
                    self._start_processes()
            if self._process is None:
                places = [_Here.FOR_GOOD] * _NUM_HERE_ALONE
            else:
                places = [_Here.WHILE_STARTING] * num_here
            for place in places:
                self._free.put(place)

    def compile(self, description: bytes, here: Callable[[], T], *, is_long: bool = False) -> T:
        """Compile a kernel where there is room first; for threads.

        Args:
            is_long: it takes much longer than others, and begins before those that wait with it.
            here: compiles the kernel in this process, or loads it if another has compiled it.
        """
        self.start()
        place = self._free.take(is_long=is_long)
        if isinstance(place, _Here):
            try:
                return here()
            finally:
                # Beside the thread that launches kernels, another one slows both down.
                if place is _Here.FOR_GOOD or not self._has_processes:
                    self._free.put(place)
        if _ask(place, description):
            self._free.put(place)
        else:
            place.close()  # what it may still send would answer another question
            self._free.put(_Here.FOR_GOOD)
        return here()

    def close(self) -> None:
        """End the processes; after the last :meth:`compile`."""
        for channel in self._sockets:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start_processes(self) -> None:
        num_processes = _number(self._num_devices)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(num_processes)]
        self._sockets = [own for own, _ in pairs]
        numbers = [other.fileno() for _, other in pairs]
        others_path = os.environ.get("PYTHONPATH")
        path = f"{_ROOT}{os.pathsep}{others_path}" if others_path else _ROOT
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _PROGRAM, str(self.folder or ""), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=numbers,
                env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,  # Ctrl-C is not for them, and close() ends them as one group
            )
        finally:
            for _, other in pairs:
                other.close()
        threading.Thread(target=self._await_start, name="compile-start", daemon=True).start()

    def _await_start(self) -> None:
        for channel in self._sockets:
            is_ready = _receive(channel, _START_SECONDS) == READY
            self._has_processes |= is_ready
            self._free.put(channel if is_ready else _Here.FOR_GOOD)


_expected: list[CompileWorkers] = []
"""Those that were started before an engine asked for them; one at most."""


def expect_to_compile(root: str | None) -> None:
    """Start the processes of an engine that has no kernels yet; where some are kept, they start with a missing one.

    Args:
        root: the setting ``cache_root``.
    """
    folder = kernel_folder(root)
    if folder is not None and is_unused(folder) and not _expected:
        workers = CompileWorkers(folder, num_devices())
        workers.start(num_here=0)
        _expected.append(workers)


def workers_for(folder: Path | None) -> CompileWorkers:
    """The expected workers, if there are any for this folder, else new ones; the caller closes them."""
    while _expected:
        workers = _expected.pop()
        if workers.folder == folder:
            return workers
        workers.close()
    return CompileWorkers(folder, num_devices())


def _number(num_devices: int) -> int:
    """How many processes the machine has cores and memory for."""
    cores, memory = available_cores(), CpuPlatform().memory().available
    return max(1, min(cores // num_devices, memory // num_devices // _BYTES_PER_PROCESS, _MAX_PROCESSES))


def _ask(channel: socket.socket, description: bytes) -> bool:
    """Whether the process replied in time."""
    with suppress(OSError):
        channel.send(description)
        return _receive(channel, _COMPILE_SECONDS) in (COMPILED, FAILED)
    return False


def _receive(channel: socket.socket, seconds: float) -> bytes:
    """A message; empty if the process has died or sends none in time."""
    with suppress(OSError):
        channel.settimeout(seconds)
        return channel.recv(LONGEST_MESSAGE)
    return b""
