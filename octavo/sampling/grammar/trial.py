"""Try a grammar in a process of its own, which may crash, hang or grow without harm to the engine.

Grammar libraries are native code that reads what clients write. Most of it ends in microseconds; some inputs have
crashed such libraries, and a compilation that takes minutes cannot be stopped within a process. So each grammar is
first compiled and walked a little here; only what ends well, within the time and the memory, is compiled in the
engine's process. Compiling twice costs less than sending the result: that is milliseconds, as text it may be a
hundred times as large as in memory.
"""

import contextlib
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from octavo.errors import RequestFailedError
from octavo.sampling.grammar.source import GrammarSource

START_TIMEOUT_S = 120.0
"""For the process to import its libraries and read the vocabulary; on a cold disk that takes a while."""
MAX_TRIAL_BYTES = 4 << 30
"""Most memory of the trial process."""
_LENGTH = struct.Struct("<I")


class TrialTask(msgspec.Struct):
    """A grammar to try on one backend.

    Attributes:
        timeout_s: processor time for it; the process ends itself beyond, should nobody be left to end it.
    """

    source: GrammarSource
    backend: str
    timeout_s: float


class TrialResult(msgspec.Struct):
    """How it went.

    Attributes:
        error: what is wrong with the grammar, None if nothing is.
        num_bytes: memory of the compiled grammar.
        is_spent: whether the process has grown so much that a new one should take its place.
    """

    error: str | None = None
    num_bytes: int = 0
    is_spent: bool = False


class VocabularySource(msgspec.Struct, frozen=True):
    """Where a vocabulary comes from; see :func:`octavo.tokenization.vocabulary.load_vocabulary`."""

    path: str
    vocab_size: int
    eos_ids: tuple[int, ...]


class TrialProcess:
    """One process at a time, started when it is first needed and again after it had to be ended.

    Used by one thread; :meth:`stop` may be called by another.
    """

    def __init__(self, vocabulary: VocabularySource) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self, task: TrialTask) -> TrialResult:
        """Try a grammar; a crash or a late end are results, too.

        Raises:
            RequestFailedError: the process cannot be started.
        """
        try:
            return self._run(task)
        except (OSError, EOFError):
            # It may have been ended from outside while it had nothing to do; a grammar that ends it does so again.
            self._end()
        try:
            return self._run(task)
        except (OSError, EOFError):
            self._end()
            return TrialResult("compiling it takes too much time or memory, or crashes the library")

    def _run(self, task: TrialTask) -> TrialResult:
        process = self._started()
        try:
            answer = _ask(process, msgspec.msgpack.encode(task), task.timeout_s)
        except TimeoutError:
            self._end()
            return TrialResult(f"compiling it takes longer than {task.timeout_s:g} seconds")
        result = msgspec.msgpack.decode(answer, type=TrialResult)
        if result.is_spent:
            self._end()
        return result

    def stop(self) -> None:
        """End the process for good."""
        with self._lock:
            self._is_stopped = True
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise RequestFailedError("The engine is shutting down.")
            if self._process is not None and self._process.poll() is None:
                return self._process
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "octavo.sampling.grammar.trial_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # Libraries print parts of grammars, which belong to users.
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": _python_path()},
                start_new_session=True,  # A break typed at the terminal is for the engine, which ends this in turn.
            )
        try:
            _ask(process, msgspec.msgpack.encode(self._vocabulary), START_TIMEOUT_S)
        except (OSError, EOFError, TimeoutError):
            self._end()
            raise RequestFailedError("The process that tries grammars could not be started.") from None
        return process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def read_message(stream: IO[bytes]) -> bytes:
    """The next message; raises EOFError at the end of the stream."""
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    return _read_exactly(stream, length)


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Send a message."""
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def _read_exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _ask(process: subprocess.Popen[bytes], message: bytes, timeout_s: float) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    deadline = time.monotonic() + timeout_s
    write_message(process.stdin, message)
    parts = _available(process.stdout, deadline)
    data = b""
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        data += next(parts)
    return data[_LENGTH.size :]


def _available(stream: IO[bytes], deadline: float) -> Iterator[bytes]:
    while True:
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            raise EOFError
        yield part


def _python_path() -> str:
    """The path that this package was found on comes first: the process may be run from anywhere."""
    root = str(Path(__file__).parents[3])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
