"""A frontend's end of the connection to the engine process: requests go out, outputs and statistics come in.

The other end is ``server.py``; ``messages.py`` defines what they exchange.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from octavo.engine import messages
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.records import EngineInfo, EngineRequest, EngineStats, StepOutputs

logger = logging.getLogger(__name__)

_MAX_TURN_SECONDS = 0.01


class EngineClient:
    """Listens for an engine process and exchanges messages with it.

    While no engine is connected, requests are neither sent nor kept: their owner returns all unfinished ones from
    ``on_ready``, which is called each time that an engine has connected.

    Args:
        on_ready: called with the engine's description and statistics; returns the requests to (re)play.
        on_batch: called with outputs and the engine's statistics.
        on_failed: called when the engine could not start.
        on_lost: called when a message of the engine could not be read, so that nobody waits for its content forever.
    """

    def __init__(
        self,
        address: str,
        *,
        on_ready: Callable[[EngineInfo, EngineStats], list[EngineRequest]],
        on_batch: Callable[[StepOutputs, EngineStats], None],
        on_failed: Callable[[messages.Failed], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._on_ready, self._on_batch, self._on_failed, self._on_lost = on_ready, on_batch, on_failed, on_lost
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._disconnections: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor)
        self._socket.bind(address)
        self._identity: bytes | None = None
        self._generation = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_connected(self) -> bool:
        """Whether an engine is connected and loaded."""
        return self._identity is not None

    def start(self) -> None:
        """Start listening, on the running event loop."""
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch_connection())]

    async def add_requests(self, requests: list[EngineRequest]) -> None:
        """Send requests, if an engine is connected."""
        await self._send(messages.Add.of(requests))

    async def abort(self, request_ids: list[str]) -> None:
        """Ask to end requests, if an engine is connected."""
        await self._send(messages.Abort(request_ids))

    async def call(self, name: str, **arguments: Any) -> Any:
        """Run a control function of the engine; see :class:`~octavo.engine.control.Control`.

        Raises:
            EngineDeadError: no engine is connected, or it died before it answered.
            InvalidRequestError: the engine rejected the call.
        """
        if self._identity is None:
            raise EngineDeadError("The engine is not running at the moment.")
        call_id = next(self._call_ids)
        self._calls[call_id] = asyncio.get_running_loop().create_future()
        await self._send(messages.ControlCall(call_id, name, arguments))
        return await self._calls[call_id]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.close_now()

    def close_now(self) -> None:
        """Stop listening; tasks end when the event loop next runs them."""
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    async def _send(self, message: messages.ToEngine) -> None:
        if self._identity is not None:
            with contextlib.suppress(zmq.ZMQError):
                await self._socket.send_multipart([self._identity, messages.encode(message)])

    async def _receive(self) -> None:
        since_others_ran = time.monotonic()
        while True:
            if time.monotonic() - since_others_ran > _MAX_TURN_SECONDS:
                # While messages are queued, recv does not suspend, so yield to other tasks explicitly.
                await asyncio.sleep(0)
                since_others_ran = time.monotonic()
            identity, data = await self._socket.recv_multipart()
            try:
                await self._handle(identity, messages.decode_from_engine(data))
            except Exception:
                # A failure with one message must not end the connection.
                logger.exception("a message of the engine could not be handled")
                self._fail_calls("The engine's answer could not be decoded.")
                self._on_lost()

    async def _handle(self, identity: bytes, message: messages.FromEngine) -> None:
        match message:
            case messages.OutputBatch(generation=generation, outputs=outputs, stats=stats):
                # Messages of a dead engine may be read after its successor's first one.
                if generation == self._generation and self.is_connected:
                    self._on_batch(outputs, stats)
            case messages.Ready(generation=generation, info=info, stats=stats):
                # Process pending disconnections first, so that the predecessor's is not taken for this engine's.
                self._note_disconnections()
                self._identity, self._generation = identity, generation
                await self.add_requests(self._on_ready(info, stats))
            case messages.Failed():
                self._on_failed(message)
            case messages.ControlReply(call_id=call_id, value=value, error=error):
                future = self._calls.pop(call_id, None)
                if future is None or future.done():
                    return
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(InvalidRequestError(error))

    async def _watch_connection(self) -> None:
        while True:
            await self._monitor.poll()
            self._note_disconnections()

    def _note_disconnections(self) -> None:
        while self._disconnections.poll(0):
            self._disconnections.recv_multipart()
            self._identity = None
            self._fail_calls("The engine stopped before it answered.")

    def _fail_calls(self, error: str) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDeadError(error))
        self._calls.clear()
