"""Starts the engine process and restarts it when it dies."""

import asyncio
import logging
import os
import signal
import time
from functools import partial

import msgspec

from octavo.config import EngineConfig
from octavo.engine.child import EngineChild
from octavo.engine.state import AS_CONFIGURED, START_FAILED, EngineState

logger = logging.getLogger(__name__)

_RESTART_WINDOW = 120.0
_MAX_RESTARTS = 5
_LAST_REPORT_SECONDS = 1.0


class Supervisor:
    """Starts the engine process, and restarts it with its last :class:`EngineState` when it dies.

    Gives up if the first engine cannot start, or if the process dies more than five times within two minutes.

    Args:
        addresses: the frontends' addresses.
        child: the first engine process if it has been started already; it is not launched yet.
    """

    def __init__(self, settings: EngineConfig, addresses: list[str], child: EngineChild | None = None) -> None:
        self._settings = settings
        self._addresses = addresses
        self._prepared = child
        self._process: EngineChild | None = None
        self._deaths: list[float] = []
        self._generation = 0
        self._state = AS_CONFIGURED
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        process = self._process
        return process.pid if process is not None and not process.has_ended else None

    async def run(self) -> None:
        """Keep the engine alive until :meth:`stop`; returns earlier only when giving up."""
        try:
            while not self._stopping:
                status = await self._run_engine()
                if self._stopping or status == START_FAILED:
                    return
                logger.error("the engine process ended %s; starting it again", _describe(status))
                if not self._may_restart():
                    logger.error(
                        "the engine died %d times within %.0f s; giving up", _MAX_RESTARTS + 1, _RESTART_WINDOW
                    )
                    return
                await asyncio.sleep(0.1 * 2 ** (len(self._deaths) - 1))
        finally:
            # A process may have been starting when stop() was called.
            if self._process is not None and not self._process.has_ended:
                self._process.kill()
                await self._process.wait()

    async def stop(self) -> None:
        """End the engine process."""
        self._stopping = True
        process = self._process
        if process is None or process.has_ended:
            return
        process.close_input()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _run_engine(self) -> int:
        """Start an engine and follow its state reports until it ends; returns its exit status."""
        process = self._process = self._prepared or EngineChild()
        self._prepared = None
        self._generation += 1
        reports = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            partial(asyncio.StreamReaderProtocol, reports), os.fdopen(process.reports, "rb")
        )
        following = asyncio.create_task(self._follow(reports))
        try:
            await process.launch(self._settings, self._addresses, self._generation, self._state)
            status = await process.wait()
            # All its reports are in the pipe by now; the timeout is for child processes that keep the pipe open.
            await asyncio.wait({following}, timeout=_LAST_REPORT_SECONDS)
            return status
        finally:
            following.cancel()
            transport.close()

    async def _follow(self, reports: asyncio.StreamReader) -> None:
        """Store the states that an engine reports; an incomplete last line is ignored."""
        async for line in reports:
            if line.endswith(b"\n"):
                self._state = msgspec.json.decode(line, type=EngineState)

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < _RESTART_WINDOW), now]
        return len(self._deaths) <= _MAX_RESTARTS


def _describe(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
