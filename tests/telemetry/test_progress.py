"""Bars show on terminals, if they are wanted and worth it."""

import io
import sys

import pytest

from octavo.telemetry import progress
from octavo.telemetry.progress import start_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_wanted", "shows"),
    [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)],
)
def test_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_wanted: bool, shows: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_DELAY", 0)
    with start_bar(2, "Loading weights", "parameters", is_wanted=is_wanted) as bar:
        bar.update(2)
    assert ("Loading weights: 100%" in stream.getvalue()) == shows


def test_what_is_quick_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with start_bar(2, "Loading weights", "parameters", is_wanted=True) as bar:
        bar.update(2)
    assert stream.getvalue() == ""
