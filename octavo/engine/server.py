"""The loop of the engine process: serves one socket per frontend, and runs the core's steps."""

import logging
import os
import time
from functools import partial
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from octavo.engine import messages
from octavo.engine.constraints import refusal
from octavo.engine.control import Control
from octavo.engine.core import EngineCore
from octavo.engine.state import AS_CONFIGURED, START_FAILED, Launch
from octavo.errors import OctavoError, RequestFailedError
from octavo.garbage import freeze_until_exit, give_memory_back
from octavo.records import EngineRequest, StepOutputs
from octavo.telemetry.phases import PhaseTimer, process_age

logger = logging.getLogger(__name__)

_STATS_INTERVAL = 0.5
_IDLE_POLL_MS = 60_000
_SETTLE_MS = 200
"""Idle for so long, the engine gives back what its last steps allocated."""


class _Frontend:
    """The connection to one frontend, and its unfinished requests."""

    def __init__(self, context: zmq.Context, address: str, generation: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, f"engine-{generation}".encode())
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(address)
        self.request_ids: set[str] = set()


class EngineServer:
    """Serves frontends until told to stop."""

    def __init__(self, launch: Launch) -> None:
        self._generation = launch.generation
        self._context = zmq.Context()
        self._frontends = [_Frontend(self._context, address, launch.generation) for address in launch.addresses]
        self._owners: dict[str, int] = {}
        self._core: EngineCore | None = None
        self._control: Control | None = None
        self._settings = launch.settings
        self._state = launch.state
        self._reports = os.fdopen(launch.reports, "wb")
        self._last_stats = 0.0

    @property
    def _phase_level(self) -> int:
        """Text logs show all phases together once the server is ready; JSON logs have a line as each one ends."""
        return logging.INFO if self._settings.logging.log_format == "json" else logging.DEBUG

    def run(self) -> int:
        """Load the model, then serve; returns the exit status."""
        try:
            phases = PhaseTimer(logger, self._phase_level)
            phases.add("imports", process_age())
            self._core = EngineCore(self._settings, phases, measures_limit=True, state=self._state, owns_process=True)
            self._control = Control(self._core, self._settings, self._deliver, self._send_stats, self._state)
            if self._state != AS_CONFIGURED:
                logger.warning("The engine keeps its earlier state: %s", self._state.summary)
            if self._generation > 1:
                total = sum(phase.seconds for phase in phases.phases)
                logger.info("The engine is back after %.1f s: %s", total, ", ".join(map(str, phases.phases)))
            # Objects created so far live as long as the process; exempt them from garbage collections while serving.
            freeze_until_exit()
        except OctavoError as error:
            return self._report_failure(str(error), is_setting=True)
        except Exception as error:
            logger.exception("the engine could not start")
            return self._report_failure(f"The engine could not start: {error}", is_setting=False)
        assert self._control is not None
        # Sockets connected before the model was loaded; their queued handshake events are each answered by Ready.
        poller = zmq.Poller()
        for frontend in self._frontends:
            poller.register(frontend.socket, zmq.POLLIN)
            poller.register(frontend.monitor, zmq.POLLIN)
        is_settled = True
        while True:
            events = dict(poller.poll(0 if self._core.has_work else _IDLE_POLL_MS if is_settled else _SETTLE_MS))
            if events:
                self._handle(events)
            if self._core.has_work:
                self._deliver(self._core.step())
                is_settled = False
            elif not events and not is_settled:
                give_memory_back()
                is_settled = True
            self._control.advance()

    def _handle(self, events: dict[zmq.Socket, int]) -> None:
        for index, frontend in enumerate(self._frontends):
            if frontend.monitor in events:
                self._handle_connection(frontend)
            if frontend.socket in events:
                self._receive(index, frontend)

    def _handle_connection(self, frontend: _Frontend) -> None:
        """Greet a frontend that connected; abort the requests of one that disconnected."""
        assert self._core is not None
        event = recv_monitor_message(frontend.monitor)["event"]
        if event == zmq.EVENT_DISCONNECTED:
            self._abort(list(frontend.request_ids))
        else:
            self._send(frontend, messages.Ready(self._generation, self._core.info, self._core.stats))

    def _receive(self, index: int, frontend: _Frontend) -> None:
        assert self._core is not None and self._control is not None
        while True:
            try:
                data = frontend.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = messages.decode_to_engine(data)
            except (msgspec.MsgspecError, OctavoError) as error:
                self._refuse_unreadable(data, error, frontend)
                continue
            match message:
                case messages.Add():
                    for request in message.all_requests():
                        request.client_index = index
                        self._add(request, frontend)
                    if self._core.is_paused:
                        self._send_stats()  # no step will report the new requests
                case messages.Abort(request_ids=request_ids):
                    self._abort(request_ids)
                case messages.ControlCall(call_id=call_id, name=name, arguments=arguments):
                    self._control.call(name, arguments, partial(self._reply, frontend, call_id))

    def _reply(self, frontend: _Frontend, call_id: int, value: Any, error: str | None) -> None:
        self._report_state()  # before the caller relies on it
        self._send(frontend, messages.ControlReply(call_id, value, error))

    def _report_state(self) -> None:
        assert self._control is not None
        state = self._control.state
        if state != self._state:
            self._state = state
            self._reports.write(msgspec.json.encode(state) + b"\n")
            self._reports.flush()

    def _add(self, request: EngineRequest, frontend: _Frontend) -> None:
        assert self._core is not None
        try:
            self._core.add_request(request)
        except OctavoError as error:
            self._refuse(request.request_id, error, frontend)
            return
        except Exception:
            logger.exception("a request could not be taken in")
            self._refuse(request.request_id, RequestFailedError("The engine could not take the request."), frontend)
            return
        self._owners[request.request_id] = request.client_index
        frontend.request_ids.add(request.request_id)

    def _refuse(self, request_id: str, error: OctavoError, frontend: _Frontend) -> None:
        assert self._core is not None
        outputs = StepOutputs(others=[refusal(request_id, error)])
        self._send(frontend, messages.OutputBatch(self._generation, outputs, self._core.stats))

    def _refuse_unreadable(self, data: bytes, error: Exception, frontend: _Frontend) -> None:
        logger.error("could not decode a frontend's message: %s", error)
        error = RequestFailedError("The engine could not read the request.")
        for request_id in messages.ids_in_unreadable(data):
            self._refuse(request_id, error, frontend)

    def _abort(self, request_ids: list[str]) -> None:
        """Abort requests without output: their frontend has dropped them already."""
        assert self._core is not None
        for output in self._core.abort(request_ids):
            self._forget(output.request_id)
        self._send_stats()

    def _forget(self, request_id: str) -> None:
        owner = self._owners.pop(request_id, None)
        if owner is not None:
            self._frontends[owner].request_ids.discard(request_id)

    def _deliver(self, outputs: StepOutputs) -> None:
        assert self._core is not None
        stats = self._core.stats
        parts = [outputs] if len(self._frontends) == 1 else self._by_owner(outputs)
        for frontend, part in zip(self._frontends, parts, strict=True):
            if part:
                for message in messages.in_parts(part):
                    self._send(frontend, messages.OutputBatch(self._generation, message, stats))
        for output in outputs.others:
            if output.finish_reason is not None:
                self._forget(output.request_id)
        if time.monotonic() - self._last_stats > _STATS_INTERVAL or not self._core.has_work:
            self._send_stats()

    def _by_owner(self, outputs: StepOutputs) -> list[StepOutputs]:
        """The outputs of each frontend's requests."""
        parts = [StepOutputs() for _ in self._frontends]
        for request_id, token_ids, logprobs in outputs.rows():
            part = parts[self._owners[request_id]]
            if logprobs is not None:
                part.logprobs[len(part.request_ids)] = logprobs
            part.request_ids.append(request_id)
            part.token_ids += token_ids
            if outputs.num_tokens:
                part.num_tokens.append(len(token_ids))
        for output in outputs.others:
            parts[self._owners[output.request_id]].others.append(output)
        return parts

    def _send_stats(self) -> None:
        """Send statistics to all frontends, including those without outputs."""
        assert self._core is not None
        self._last_stats = time.monotonic()
        for frontend in self._frontends:
            self._send(frontend, messages.OutputBatch(self._generation, StepOutputs(), self._core.stats))

    def _report_failure(self, error: str, *, is_setting: bool) -> int:
        # If the first engine cannot start, another attempt will not help. A restarted one may find its predecessor's
        # memory still in use, so it may be tried again.
        is_final = self._generation == 1
        for frontend in self._frontends:
            self._send(frontend, messages.Failed(self._generation, error, is_setting, is_final))
            frontend.socket.disable_monitor()
            frontend.monitor.close(0)
            frontend.socket.close()
        self._context.term()
        return START_FAILED if is_final else 1

    def _send(self, frontend: _Frontend, message: messages.FromEngine) -> None:
        frontend.socket.send(messages.encode(message))
