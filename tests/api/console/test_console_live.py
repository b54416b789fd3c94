"""The live view in a real browser, against the fake engine's metrics."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine

from octavo.records import EngineStats


def tile(page: Any, name: str) -> Any:
    """The tile with this title."""
    return page.locator("#tiles").get_by_label(name, exact=True)


def test_live_view_shows_the_engines_figures(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine()
    engine.info.decode_limit, engine.info.device = 100.0, "a small device"
    engine.info.decisions = [{"name": "block_size", "value": "16", "reason": "as set"}]
    page = open_page(engine)
    engine.metrics.record_stats(EngineStats(num_running=3, num_waiting=12, cache_usage=0.25, num_steps=1))
    page.get_by_role("button", name="Live").click()
    tile(page, "Requests waiting").get_by_text("12").wait_for()
    assert "3" in tile(page, "Requests running").inner_text()
    assert "25 %" in tile(page, "Cache in use").inner_text()
    engine.metrics.record_stats(EngineStats(num_running=3, generation_tokens=5000, num_steps=2))
    for _ in range(10):
        engine.metrics.record_first_token(0.05)
        engine.metrics.record_next_token(0.02)
    tile(page, "Time between tokens").get_by_text("20.0 ms", exact=True).wait_for()
    assert "50.0 ms" in tile(page, "Time to first token").inner_text()
    assert "50 %" in tile(page, "Share of the memory bandwidth limit").inner_text()
    assert float(tile(page, "Generated").locator(".value").inner_text().split()[0].replace(",", "")) > 500
    assert "a small device" in page.locator("#server").inner_text()
    engine.is_healthy = False
    page.get_by_text("The engine is down").wait_for()


def test_figures_of_an_earlier_time_show_at_once(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine()
    engine.metrics.record_first_token(0.05)
    engine.metrics.record_next_token(0.02)
    page = open_page(engine)
    page.get_by_role("button", name="Live").click()
    tile(page, "Time to first token").get_by_text("50.0 ms", exact=True).wait_for()
    assert "since the start" in tile(page, "Time to first token").inner_text()


def test_charts_have_axes_and_lines_at_once(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.get_by_role("button", name="Live").click()
    page.locator(".chart canvas").first.wait_for()
    titles = [" ".join(text.split()) for text in page.locator(".chart figcaption").all_inner_texts()]
    assert titles == ["Throughput tokens/s", "Load requests", "Cache in use %", "Latency ms"]
    legend = page.locator(".chart").first.locator(".u-legend")
    assert "generated" in legend.inner_text()
    # Two readings, half a second apart, make the first rate.
    legend.get_by_text("0 tokens/s").first.wait_for()
    is_drawn = """() => [...document.querySelectorAll(".chart canvas")].every((canvas) =>
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value))"""
    assert page.evaluate(is_drawn)


@pytest.mark.parametrize("reach", ["hover", "focus"])
def test_the_bandwidth_limit_is_explained(open_page: Callable[..., Any], reach: str) -> None:
    page = open_page()
    page.get_by_role("button", name="Live").click()
    explanation = page.get_by_role("tooltip", include_hidden=True)
    assert not explanation.is_visible()
    getattr(page.get_by_role("button", name="About: Share of the memory bandwidth limit"), reach)()
    assert explanation.is_visible()
    assert "weights" in explanation.inner_text()
