"""Dashboards made for vLLM find their metrics here, and the one that comes with Octavo finds its own."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.records import EngineInfo, EngineStats
from octavo.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
VLLM_METRICS = json.loads((Path(__file__).parent / "vllm_metrics.json").read_text())
# What docs/differences.md explains: beginnings of names.
MISSING = (
    *("hf3fs_", "hisparse_", "mooncake_", "nixl_", "umbp_", "simple_kv_offload_", "kv_offload_"),
    *("external_prefix_cache_", "num_requests_kv_fetch_by_stage", "mm_cache_", "lora_requests_info", "watermark_"),
    *("diffusion_", "websocket_", "tool_call_parser_", "estimated_", "kv_block_"),
)


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Names as Prometheus stores them, and of families → labels."""
    metrics = Metrics("m")
    metrics.set_cache_info(EngineInfo(2048, 100, 77, 16, 8, True))
    metrics.record_stats(EngineStats(acceptances=[0, 0]))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
            found.setdefault(family.name, set()).update(set(sample.labels) - {"le"})
    return found


@pytest.mark.parametrize("name", VLLM_METRICS)
def test_a_metric_of_vllm_is_there_or_its_absence_is_explained(name: str, exposed: dict[str, set[str]]) -> None:
    is_there = f"octavo:{name}" in exposed
    assert is_there != name.startswith(MISSING)
    if is_there:
        assert exposed[f"octavo:{name}"] >= set(VLLM_METRICS[name]["labels"])


@pytest.mark.parametrize("beginning", MISSING)
def test_what_is_missing_is_missing_for_a_reason(beginning: str) -> None:
    assert any(name.startswith(beginning) for name in VLLM_METRICS), "this exception excuses nothing"
    assert f"`{beginning}" in (ROOT / "docs/differences.md").read_text()


def test_the_dashboard_asks_for_what_is_there(exposed: dict[str, set[str]]) -> None:
    dashboard = json.loads((ROOT / "docs/grafana/octavo.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        names = re.findall(r"octavo:\w+", expression)
        assert names and set(names) <= set(exposed), expression
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert set(labels.split(", ")) <= exposed[names[0]], expression
