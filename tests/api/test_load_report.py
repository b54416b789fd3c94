"""Balancers learn the load from answers."""

import json

import pytest
from running_server import RunningServer

from octavo.records import EngineStats

FORMAT = "endpoint-load-metrics-format"
REPORT = "endpoint-load-metrics"


@pytest.fixture
def loaded(server: RunningServer) -> RunningServer:
    """A server whose engine has something to do."""
    server.engine.metrics.record_stats(EngineStats(num_waiting=2, cache_usage=0.5))
    return server


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_json(loaded: RunningServer, stream: bool) -> None:
    body = {"prompt": "hi", "max_tokens": 2, "stream": stream}
    text = loaded.client.post("/v1/completions", json=body, headers={FORMAT: "text"}).headers[REPORT]
    assert text == "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=2.0"
    report = loaded.client.post("/v1/completions", json=body, headers={FORMAT: "JSON"}).headers[REPORT]
    kind, _, values = report.partition(" ")
    assert kind == "JSON"
    assert json.loads(values) == {"named_metrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 2.0}}


@pytest.mark.parametrize("asked", ["", "BIN", "JSON, TEXT"])
def test_other_formats_get_none(loaded: RunningServer, asked: str) -> None:
    assert REPORT not in loaded.client.get("/v1/models", headers={FORMAT: asked}).headers
    assert REPORT not in loaded.client.get("/v1/models").headers
