"""``octavo bench engine``: compares engines with each other and with the device's limit, in fresh processes."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench import engine_turn
from octavo.errors import EngineDeadError

TO_STANDARD_ERROR = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with vLLM's offline interface.

    Attributes:
        module: the module with ``LLM`` and ``SamplingParams``.
        settings: keyword arguments of ``LLM``.
        python: the interpreter in which the module is installed.
    """

    module: str
    settings: dict[str, Any]
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class EngineSamples:
    """All repetitions of one call.

    Attributes:
        seconds: duration of each, in order.
        input_lens, output_lens: tokens of the requests; the same in every repetition.
    """

    input_lens: list[int]
    output_lens: list[int]
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """Measurements of one process.

    Attributes:
        version: of the module.
        phases: seconds of the interpreter's start, the import, the engine's start and the first call.
        start_notes: lines that the engine logged about its startup phases.
        samples: by the names in :func:`octavo.bench.engine_turn.draw_calls`.
    """

    version: str
    phases: dict[str, float]
    start_notes: list[str]
    samples: dict[str, EngineSamples]


def run_turn(engine: Engine, cases: Sequence[str], scale: float, token_ids: tuple[int, int]) -> EngineMeasurement:
    """Start an engine, run the cases, end it. Its output goes to standard error.

    Args:
        token_ids: range of token ids in prompts, as (first, end).

    Raises:
        EngineDeadError: it ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        result = Path(folder) / "result.json"
        # Run a copy: Python looks for modules in a script's own folder first.
        script = shutil.copy(engine_turn.__file__, folder)
        job = {
            "module": engine.module,
            "settings": engine.settings,
            "cases": list(cases),
            "scale": scale,
            "token_ids": token_ids,
            "started": time.time(),
            "result": str(result),
        }
        ended = subprocess.run(
            [engine.python, script],
            input=json.dumps(job),
            text=True,
            stdout=TO_STANDARD_ERROR,
            env=environment(engine.python),
            check=False,
        )
        if ended.returncode or not result.is_file():
            raise EngineDeadError(
                f"{engine.module} ended with status {ended.returncode} before it wrote a result; its output is above."
            )
        report: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return EngineMeasurement(report["version"], report["phases"], report["start_notes"], _collect(report["calls"]))


def measure_ceilings_apart(device: str, dtype: str, num_threads: int | None) -> dict[str, Any]:
    """The device's name and ceilings, measured in a separate process.

    Raises:
        EngineDeadError: it failed.
    """
    command = [sys.executable, "-m", "octavo.bench.ceilings", "--device", device, "--dtype", dtype]
    if num_threads is not None:
        command += ["--num-threads", str(num_threads)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(sys.executable), check=False)
    if ended.returncode:
        raise EngineDeadError(f"Measuring the device failed with status {ended.returncode}; the reason is above.")
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def environment(python: str) -> dict[str, str]:
    """The environment of an engine's process; Octavo's own finds this copy of the package."""
    if python != sys.executable:
        return dict(os.environ)
    home = str(Path(__file__).parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{others}" if others else home}


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def _collect(calls: Sequence[Mapping[str, Any]]) -> dict[str, EngineSamples]:
    samples: dict[str, EngineSamples] = {}
    for call in calls:
        repeated = samples.setdefault(call["name"], EngineSamples(call["input_lens"], call["output_lens"]))
        repeated.seconds.append(call["seconds"])
    return samples
