"""The parent's handle of an engine process, which is started before its settings are known, then launched with them.

Most of startup is spent on imports: a process that is started early imports while the parent still parses its flags.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

import msgspec

from octavo.config import EngineConfig
from octavo.engine.state import EngineState, Launch


class EngineChild:
    """A running ``octavo.engine.process``, which imports and then waits for :meth:`launch`.

    As a context manager, it ends a process that was not launched.

    Attributes:
        reports: file descriptor to read its :class:`EngineState` from, a line of JSON per change; the caller closes it
            once the process is launched.
    """

    def __init__(self) -> None:
        # A separate pipe, since libraries may write to standard output.
        self.reports, self._reports_in_child = os.pipe()
        self._is_launched = False
        self._ended: asyncio.Future[int] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo.engine.process"],
                stdin=subprocess.PIPE,
                pass_fds=[self._reports_in_child],
            )
        except OSError:
            os.close(self.reports)
            raise
        finally:
            os.close(self._reports_in_child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_launched:
            os.close(self.reports)
            self.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    async def launch(self, settings: EngineConfig, addresses: list[str], generation: int, state: EngineState) -> None:
        """Send the launch message; a process that has died already is noticed by :meth:`wait`.

        Args:
            addresses, generation, state: see :class:`Launch`.
        """
        self._is_launched = True
        line = msgspec.json.encode(Launch(settings, addresses, generation, self._reports_in_child, state)) + b"\n"
        await asyncio.to_thread(self._write, line)

    async def wait(self) -> int:
        """Wait for its end and return its exit status; may be called by several tasks of one event loop."""
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            threading.Thread(target=self._watch, args=(loop, self._ended), name="engine-watch", daemon=True).start()
        return await asyncio.shield(self._ended)

    def close_input(self) -> None:
        """Close its standard input, upon which it ends by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process."""
        self.close_input()
        self._process.kill()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # ValueError: close_input() came first
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _watch(self, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[int]") -> None:
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_set_status, ended, status)


def _set_status(ended: "asyncio.Future[int]", status: int) -> None:
    if not ended.done():
        ended.set_result(status)
