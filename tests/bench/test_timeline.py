"""Pictures of a served load."""

import builtins
import logging
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.load import RequestRecord
from octavo.bench.timeline import plot_dataset_stats, plot_timeline, timeline_segments

RECORDS = [
    RequestRecord(10, "done", start=0.5, ttft=0.25, latency=0.4, itl=[0.01, 0.03, 0.1], output_tokens=4),
    RequestRecord(12, "failed", "no"),
    RequestRecord(11, "done", start=1.0, ttft=0.5, latency=0.5, output_tokens=1),
]


def test_each_piece_of_time_has_its_class() -> None:
    segments = timeline_segments(RECORDS, [25, 50])
    assert list(segments) == ["TTFT", "ITL below 25 ms", "ITL below 50 ms", "ITL from 50 ms"]
    assert segments["TTFT"] == [(0, 0.5, 0.25), (2, 1.0, 0.5)]
    assert segments["ITL below 25 ms"] == [(0, 0.75, 0.01)]
    assert segments["ITL below 50 ms"] == [(0, 0.76, 0.03)]
    assert segments["ITL from 50 ms"] == [(0, pytest.approx(0.79), 0.1)]


def test_the_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "r.timeline.html"
    assert plot_timeline(RECORDS, [25, 50], path)
    assert "ITL below 25 ms" in path.read_text(encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert plot_timeline([], [25, 50], path)
    assert "the timeline is empty" in caplog.text


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "r.dataset_stats.png"
    assert plot_dataset_stats(RECORDS, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("package", ["plotly", "matplotlib"])
def test_a_missing_package_is_a_warning(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    importing = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return importing(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with caplog.at_level(logging.WARNING):
        if package == "plotly":
            assert not plot_timeline(RECORDS, [25], tmp_path / "t.html")
        else:
            assert not plot_dataset_stats(RECORDS, tmp_path / "s.png")
    assert "octavo[bench]" in caplog.text
    assert not list(tmp_path.iterdir())
