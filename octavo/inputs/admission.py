"""Admission of requests: limits, deadlines, metrics, traces and request logging."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from octavo.config import EngineConfig
from octavo.errors import DeadlineExceededError, QueueFullError
from octavo.inputs.gate import QueueGate
from octavo.outputs.meter import RequestMeter
from octavo.outputs.request_log import RequestLog
from octavo.records import EngineInfo, PreparedRequest, StepOutputs
from octavo.records.caller import CALLER
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Admitted:
    """Requests that were taken in together, and what ends them at their deadline."""

    prepared: Sequence[PreparedRequest]
    timer: asyncio.TimerHandle | None


class QueueAdmission:
    """Lets requests in while there is room for them, and accounts for what their callers experience.

    Args:
        model_name: what metrics and traces call the model.
        index: place among the frontends of the engine; a label of the metrics.
        tracer: records every finished request; None without tracing.

    Attributes:
        metrics: what Prometheus may scrape.
        meter: times requests in flight.
        log: writes one line per request if request logging is enabled.
    """

    def __init__(
        self, settings: EngineConfig, info: EngineInfo, model_name: str, index: int, tracer: Tracer | None
    ) -> None:
        self.metrics = Metrics(model_name, info.max_model_len, str(index), settings.logging.metrics_prefix)
        self.metrics.set_cache_info(info, msgspec.to_builtins(settings.cache))
        self.meter = RequestMeter(self.metrics, tracer, model_name)
        self.log = RequestLog(settings.logging)
        limits = settings.scheduler
        self._gate = QueueGate(
            info.max_num_seqs, limits.max_num_waiting, limits.max_num_waiting_tokens, limits.max_num_queued_reqs
        )

    def check(self, num_tokens: int = 0) -> None:
        """Reject a request that exceeds the limits.

        Args:
            num_tokens: of its prompt, once they are known.

        Raises:
            QueueFullError: too many requests wait already.
        """
        try:
            self._gate.check(CALLER.get().client, num_tokens)
        except QueueFullError as error:
            self.metrics.record_rejection(error.reason)
            raise

    def begin(self, prepared: Sequence[PreparedRequest], fail: Callable[[Exception], None]) -> Admitted:
        """Note requests that were taken in, and end them at their caller's deadline; :meth:`end` comes after it.

        Raises:
            DeadlineExceededError: it has passed.
        """
        caller, timer = CALLER.get(), None
        if caller.deadline is not None:
            seconds = caller.deadline - time.monotonic()
            error = DeadlineExceededError("The request took longer than its deadline allows.")
            if seconds <= 0:
                raise error
            timer = asyncio.get_running_loop().call_later(seconds, fail, error)
        for request in prepared:
            for child in request.children:
                child.client = caller.client
            self._gate.enter(request.children[0].request_id, caller.client, len(request.prompt_token_ids))
            self.meter.begin(request, caller.trace_headers)
            if self.log.is_on:
                self.log.begin(request)
        return Admitted(prepared, timer)

    def observe(self, outputs: StepOutputs) -> None:
        """Account for the engine's outputs."""
        self.meter.observe(outputs)
        for output in outputs.others:
            self._gate.begin(output.request_id)

    def end(self, admitted: Admitted, reasons: Sequence[str | None]) -> None:
        """Requests are over; ``reasons`` are those of their completions."""
        if admitted.timer is not None:
            admitted.timer.cancel()
        for request in admitted.prepared:
            self._gate.leave(request.children[0].request_id)
            if self.log.is_on:
                self.log.end(request.request_id, reasons)
