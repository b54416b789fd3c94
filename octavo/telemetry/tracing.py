"""A trace span for each request, sent to an OpenTelemetry collector."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from octavo.errors import ConfigError
from octavo.records import RequestStateStats, SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TRACE_HEADERS = ("traceparent", "tracestate")
_PROTOCOLS = ("grpc", "http/protobuf")
_SHUTDOWN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The content of a request's span.

    Attributes:
        stats: of the sequence that ended last.
        num_generation_tokens: of all sequences.
        finish_reason: of the sequence that ended last.
        end_time: in seconds since the epoch.
    """

    request_id: str
    model: str
    params: SamplingParams | None
    num_prompt_tokens: int
    num_generation_tokens: int
    num_sequences: int
    stats: RequestStateStats
    finish_reason: str
    headers: Mapping[str, str]
    end_time: float


class Tracer:
    """Exports a span for every finished request, on a thread of its own, so that requests never wait for it.

    Args:
        endpoint: the collector's URL. The protocol is gRPC, or HTTP if the URL has a path, as in
            ``http://collector:4318/v1/traces``; ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` overrides that.
        exporter: replaces the exporter for ``endpoint``.

    Raises:
        ConfigError: the packages are not installed, or the protocol is unknown.
    """

    def __init__(self, endpoint: str, exporter: "SpanExporter | None" = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            exporter = exporter or _exporter(endpoint)
        except ImportError as error:
            raise ConfigError(
                f"Traces need packages that are not installed ({error.name}): "
                "pip install opentelemetry-sdk opentelemetry-exporter-otlp."
            ) from None
        self._exporter = exporter
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over these.
        self._provider: TracerProvider = TracerProvider(resource=Resource.create({"service.name": "octavo"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def record(self, trace: RequestTrace) -> None:
        """Export the span of a finished request."""
        context = self._propagator.extract(dict(trace.headers))
        start = trace.stats.arrival_time
        span = self._tracer.start_span("llm_request", context, self._kind, _attributes(trace), start_time=_ns(start))
        if trace.finish_reason == "error":
            from opentelemetry.trace import StatusCode

            span.set_status(StatusCode.ERROR)
        span.end(_ns(trace.end_time))

    def shutdown(self) -> None:
        """Send the remaining spans, within a short time limit."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_SHUTDOWN_SECONDS)
        if sending.is_alive():
            self._exporter.shutdown()  # otherwise it would keep retrying
            sending.join(_SHUTDOWN_SECONDS)


def _exporter(endpoint: str) -> "SpanExporter":
    parts = urlsplit(endpoint)
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = protocol or ("http/protobuf" if parts.path.strip("/") and parts.netloc else "grpc")
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"Traces are sent by {' or '.join(_PROTOCOLS)}, not by {protocol!r}.")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=None if parts.scheme in ("http", "https") else True)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=endpoint)


def _attributes(trace: RequestTrace) -> dict[str, str | int | float]:
    """Span attributes, with the names of vLLM's traces; times that the request never reached are left out."""
    stats = trace.stats
    found: dict[str, str | int | float | None] = {
        "gen_ai.request.id": trace.request_id,
        "gen_ai.response.model": trace.model,
        "gen_ai.usage.prompt_tokens": trace.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": trace.num_generation_tokens,
        "gen_ai.usage.num_sequences": trace.num_sequences,
        "gen_ai.latency.e2e": trace.end_time - stats.arrival_time,
        "gen_ai.response.finish_reason": trace.finish_reason,
    }
    if trace.params is not None:
        found |= {
            "gen_ai.request.n": trace.params.n,
            "gen_ai.request.temperature": trace.params.temperature,
            "gen_ai.request.top_p": trace.params.top_p,
            "gen_ai.request.max_tokens": trace.params.max_tokens,
        }
    if stats.scheduled_ts:
        found["gen_ai.latency.time_in_queue"] = stats.scheduled_ts - stats.queued_ts
    if stats.first_token_ts:
        found["gen_ai.latency.time_to_first_token"] = stats.first_token_ts - stats.arrival_time
        found["gen_ai.latency.time_in_model_prefill"] = stats.first_token_ts - stats.scheduled_ts
        found["gen_ai.latency.time_in_model_decode"] = stats.last_token_ts - stats.first_token_ts
        found["gen_ai.latency.time_in_model_inference"] = stats.last_token_ts - stats.scheduled_ts
    return {name: value for name, value in found.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
