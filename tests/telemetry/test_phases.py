"""A start leaves a line for each of its phases."""

import json
import logging

import pytest

from octavo.telemetry.logs import JsonFormatter
from octavo.telemetry.phases import PhaseTimer, process_age


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_phase_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.test")
    clock = Clock()
    timer = PhaseTimer(logging.getLogger("octavo.test"), clock=clock)
    timer.add("import", 0.5)
    with timer.phase("weights") as phase:
        clock.now += 4
        phase.num_bytes = 16_000_000_000
    with timer.phase("memory") as phase:
        clock.now += 0.25
        phase.note = "cache for 1000 tokens"
    clock.now += 1
    assert timer.ready("all is well") == 5.25
    assert caplog.messages == [
        "Start: import 0.50 s",
        "Start: weights 4.00 s (16.00 GB, 4.0 GB/s)",
        "Start: memory 0.25 s (cache for 1000 tokens)",
        "Start: ready 5.25 s (all is well)",
    ]
    assert [(phase.name, phase.seconds) for phase in timer.phases] == [
        ("import", 0.5),
        ("weights", 4),
        ("memory", 0.25),
    ]


def test_a_phase_that_fails_is_not_noted() -> None:
    timer = PhaseTimer(logging.getLogger("octavo.test"))
    with pytest.raises(ValueError, match="broken"), timer.phase("weights"):
        raise ValueError("broken")
    assert timer.phases == []


def test_a_process_has_an_age() -> None:
    assert 0 <= process_age() < 24 * 3600


def test_phases_are_fields_of_lines_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("octavo.test")
    logger.addHandler(handler)
    clock = Clock()
    with PhaseTimer(logger, clock=clock).phase("weights") as phase:
        clock.now += 4
        phase.num_bytes = 16
    line = json.loads(capsys.readouterr().err)
    assert (line["phase"], line["seconds"], line["bytes"], line["logger"]) == ("weights", 4, 16, "octavo.test")


def test_phases_may_be_logged_at_another_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.test")
    PhaseTimer(logging.getLogger("octavo.test"), logging.DEBUG).add("imports", 1.0)
    assert caplog.messages == []
