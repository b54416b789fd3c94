"""A frontend's view of its engine: start, health, restarts by the supervisor, shutdown.

Read on in ``client.py`` (messages) and ``supervisor.py`` (the process).
"""

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from octavo.config import EngineConfig
from octavo.engine.child import EngineChild
from octavo.engine.client import EngineClient
from octavo.engine.messages import Failed
from octavo.engine.supervisor import Supervisor
from octavo.errors import ConfigError, EngineDeadError, OctavoError, RequestFailedError
from octavo.records import EngineInfo, EngineRequest, EngineStats, StepOutputs

logger = logging.getLogger(__name__)


class RequestOwner(Protocol):
    """The owner of requests in the engine; called from the event loop."""

    def handle_ready(self) -> list[EngineRequest]:
        """An engine is ready, the first or a restarted one; returns the requests to (re)play."""

    def handle_outputs(self, outputs: StepOutputs) -> None:
        """Outputs arrived; ``outputs`` is empty if only the engine's statistics changed."""

    def handle_failure(self, error: OctavoError) -> None:
        """No more outputs will arrive for the requests in flight."""


class EngineLifecycle:
    """Starts an engine process, keeps the connection across restarts, and detects a stuck engine.

    Args:
        address: address to listen on for an engine supervised by another process; None starts and supervises one.
        child: the first engine process if it has been started already; it is not launched yet.

    Attributes:
        stats: the engine's latest statistics.
        error: why the engine has ended for good; None otherwise.
    """

    def __init__(
        self, settings: EngineConfig, owner: RequestOwner, address: str | None, child: EngineChild | None = None
    ) -> None:
        self.stats = EngineStats()
        self.error: EngineDeadError | ConfigError | None = None
        self._settings = settings
        self._owner = owner
        self._address = address
        self._child = child
        self._folder: Path | None = None
        self._client: EngineClient | None = None
        self._supervisor: Supervisor | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._info: EngineInfo | None = None
        self._is_settled = asyncio.Event()
        self._last_progress = 0.0
        self._background: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> EngineInfo:
        """The engine's description."""
        assert self._info is not None, "start() comes first"
        return self._info

    @property
    def is_connected(self) -> bool:
        """Whether an engine is connected and loaded."""
        return self._client is not None and self._client.is_connected

    def start(self) -> None:
        """Start listening and start an engine process; await :meth:`wait_until_started` next."""
        address = self._address
        if address is None:
            self._folder = Path(tempfile.mkdtemp(prefix="octavo-"))
            address = f"ipc://{self._folder}/engine.sock"
        self._client = EngineClient(
            address,
            on_ready=self._handle_ready,
            on_batch=self._handle_batch,
            on_failed=self._handle_failure,
            on_lost=self._handle_loss,
        )
        self._client.start()
        if self._address is None:
            self._supervisor = Supervisor(self._settings, [address], self._child)
            self._supervision = asyncio.create_task(self._supervise(self._supervisor))

    async def wait_until_started(self) -> None:
        """Return when the engine is loaded.

        Raises:
            OctavoError: the model or a setting is wrong.
            EngineDeadError: the engine did not start.
        """
        await self._is_settled.wait()
        if self.error is not None:
            raise self.error

    async def wait_until_dead(self) -> None:
        """Return when the engine has ended for good."""
        if self._supervision is None:
            await asyncio.Event().wait()  # another process supervises the engine, and ends this one if necessary
        else:
            await asyncio.wait([self._supervision])

    def is_stuck(self, *, has_unfinished_requests: bool) -> bool:
        """Whether the engine has work, but finished no step for longer than ``step_timeout``.

        Args:
            has_unfinished_requests: whether this frontend has requests in flight.
        """
        stats = self.stats
        is_busy = has_unfinished_requests or bool(stats.num_running or stats.num_waiting)
        timeout = self._settings.scheduler.step_timeout
        return is_busy and not stats.is_paused and time.monotonic() - self._last_progress > timeout

    def note_progress(self) -> None:
        """Restart the clock of :meth:`is_stuck`."""
        self._last_progress = time.monotonic()

    async def add_requests(self, requests: list[EngineRequest]) -> None:
        """Send requests, if an engine is connected."""
        if requests and self._client is not None:
            await self._client.add_requests(requests)

    async def abort(self, request_ids: list[str]) -> None:
        """Ask to end requests, if an engine is connected."""
        if request_ids and self._client is not None:
            await self._client.abort(request_ids)

    def run_soon(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background and keep it alive until it is done."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def call(self, name: str, **arguments: Any) -> Any:
        """Run one of the engine's control functions.

        Raises:
            EngineDeadError: no engine is connected, or it died before it answered.
            InvalidRequestError: the engine rejected the call.
        """
        if self._client is None:
            raise self.error or EngineDeadError("The engine is not started.")
        return await self._client.call(name, **arguments)

    async def shutdown(self) -> None:
        """End requests and the engine process, and release everything; may be called more than once."""
        self._die(EngineDeadError("The engine is shut down."))
        # Take all before the first await, so that concurrent calls do not end anything twice.
        supervisor, supervision, client, folder = self._supervisor, self._supervision, self._client, self._folder
        self._supervisor = self._supervision = self._client = self._folder = None
        if supervisor is not None:
            await supervisor.stop()
        if supervision is not None:
            supervision.cancel()
            await asyncio.gather(supervision, return_exceptions=True)
        if client is not None:
            await client.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """:meth:`shutdown` without waiting; the engine process ends when the event loop next runs, or with it."""
        self._die(EngineDeadError("The engine is shut down."))
        supervision, client, folder = self._supervision, self._client, self._folder
        self._supervisor = self._supervision = self._client = self._folder = None
        if supervision is not None and not supervision.get_loop().is_closed():
            supervision.cancel()
        if client is not None:
            client.close_now()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _supervise(self, supervisor: Supervisor) -> None:
        await supervisor.run()
        self._die(EngineDeadError("The engine failed and will not be restarted; see the log."))

    def _die(self, error: EngineDeadError | ConfigError) -> None:
        if self.error is None:
            self.error = error
        self._owner.handle_failure(self.error)
        self._is_settled.set()

    def _handle_ready(self, info: EngineInfo, stats: EngineStats) -> list[EngineRequest]:
        self._info, self.stats = info, stats
        self.note_progress()
        self._is_settled.set()
        return self._owner.handle_ready()

    def _handle_batch(self, outputs: StepOutputs, stats: EngineStats) -> None:
        if stats.num_steps != self.stats.num_steps or stats.is_paused or stats.only_awaits_grammars:
            self.note_progress()
        self.stats = stats
        self._owner.handle_outputs(outputs)

    def _handle_failure(self, failed: Failed) -> None:
        if failed.is_final:
            self._die(ConfigError(failed.error) if failed.is_setting else EngineDeadError(failed.error))
        else:
            logger.error("%s", failed.error)

    def _handle_loss(self) -> None:
        self._owner.handle_failure(RequestFailedError("The engine's message could not be decoded."))
