"""A collector gets a span of every request, in the trace that the request came with."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from engine_requests import engine_request
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from octavo.errors import ConfigError
from octavo.outputs.meter import RequestMeter
from octavo.records import EngineOutput, PreparedRequest, RequestTimes, SamplingParams, StepOutputs
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.tracing import Tracer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@dataclass
class Collector:
    """What a collector was sent."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> list:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [s for r in requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.paths.append(self.path)
            found.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def prepared(request_id: str, n: int = 1) -> PreparedRequest:
    params = SamplingParams(n=n, temperature=0.5, top_p=0.9, max_tokens=7)
    children = [engine_request(f"{i}_{request_id}", [1, 2, 3], params) for i in range(n)]
    return PreparedRequest(request_id, None, [1, 2, 3], params, children, arrival_time=1000.0)


def attributes(span: object) -> dict[str, object]:
    found = {}
    for item in span.attributes:  # type: ignore[attr-defined]
        kind = item.value.WhichOneof("value")
        found[item.key] = getattr(item.value, kind)
    return found


def test_a_request_becomes_one_span_of_its_callers_trace(collector: Collector) -> None:
    tracer = Tracer(collector.url)
    meter = RequestMeter(Metrics("m"), tracer, "org/model")
    meter.begin(prepared("a", n=2), {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"})
    times = RequestTimes(queued=1000.5, scheduled=1001.0)
    meter.observe(StepOutputs(others=[EngineOutput(f"{i}_a", [5], times=times) for i in range(2)]))
    meter.observe(StepOutputs(["0_a"], [6]))
    meter.observe(StepOutputs(others=[EngineOutput("0_a", [7], finish_reason="stop", times=times)]))
    meter.end(["1_a"], "stop")
    tracer.shutdown()
    assert collector.paths == ["/v1/traces"]
    (span,) = collector.spans()
    assert span.name == "llm_request"
    assert span.trace_id.hex() == TRACE_ID
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert span.start_time_unix_nano == 1000 * 10**9 < span.end_time_unix_nano
    found = attributes(span)
    expected = {
        "gen_ai.request.id": "a",
        "gen_ai.response.model": "org/model",
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.request.n": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.latency.time_in_queue": 0.5,
    }
    assert found.items() >= expected.items()
    assert {"gen_ai.latency.e2e", "gen_ai.latency.time_to_first_token", "gen_ai.latency.time_in_model_prefill"} <= set(
        found
    )


def test_an_endpoint_without_a_path_is_sent_spans_by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = Collector()

    def export(body: bytes, _: grpc.ServicerContext) -> bytes:
        found.bodies.append(body)
        return b""

    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        tracer = Tracer(f"http://127.0.0.1:{port}")
        meter = RequestMeter(Metrics("m"), tracer)
        meter.begin(prepared("a"))
        meter.end(["0_a"], "stop")
        tracer.shutdown()
    finally:
        server.stop(None)
    assert [span.name for span in found.spans()] == ["llm_request"]


def test_a_request_without_context_begins_a_trace_and_one_never_run_has_no_times(collector: Collector) -> None:
    tracer = Tracer(collector.url)
    meter = RequestMeter(Metrics("m"), tracer)
    for index, headers in enumerate(({}, {"traceparent": "00-nonsense-\r\n-01"}, {"tracestate": "a=b"})):
        meter.begin(prepared(f"{index}"), headers)
        meter.end([f"0_{index}"], "abort")
    tracer.shutdown()
    spans = collector.spans()
    assert len({span.trace_id for span in spans}) == 3
    for span in spans:
        assert not span.parent_span_id
        assert not {name for name in attributes(span) if "time_" in name}


def test_a_collector_that_is_away_does_no_harm() -> None:
    class Away(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            raise ConnectionError

    tracer = Tracer("http://127.0.0.1:9/v1/traces", Away())
    meter = RequestMeter(Metrics("m"), tracer)
    meter.begin(prepared("a"))
    meter.end(["0_a"], "abort")
    tracer.shutdown()


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "pigeon")
    with pytest.raises(ConfigError, match="grpc or http/protobuf"):
        Tracer("http://127.0.0.1:9/v1/traces")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigError, match=r"not installed \(.+\): pip install opentelemetry-sdk"):
        Tracer("localhost:4317")
