"""The benchmarks of the host's time in a step."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

import cpu_host_share
import host_step


@pytest.mark.parametrize("scenario", ["steady", "chat"])
def test_a_step_of_the_host_is_measured_part_by_part(scenario: str) -> None:
    figures = host_step.measure(scenario, 3, 10)
    assert {"schedule", "update", "message", "offline", "stream", "add", "engine"} < figures.keys()
    assert all(figure > 0 for figure in figures.values())


def test_the_share_is_what_kernels_leave_of_a_step() -> None:
    steps = [(1_000_000, 900_000, 2), (3_000_000, 500_000, 4), (2_000_000, 1_800_000, 2)]
    assert cpu_host_share.summary(steps) == {"step": 2000, "host": 200, "host's share (%)": 10, "calls of kernels": 2}
