"""Runs the turns of ``cpu_peers.py``: workers in processes of their own, watched from outside."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from common import resident_bytes
from cpu_peers_engines import Job
from cpu_peers_models import ModelFiles
from cpu_peers_worker import WORKLOADS

from octavo.bench.engine import environment

_WORKER = Path(__file__).with_name("cpu_peers_worker.py")
# At a workload's end each request fills its blocks of 16 tokens but for one; none has to wait for another's.
_CACHE_TOKENS = max(
    workload.batch_size * (workload.input_len + workload.output_len + 16) for workload in WORKLOADS.values()
)
_SETTINGS = {"octavo": ("",), "llama.cpp": ("flash", "plain"), "huggingface": ("bfloat16", "float32")}
_LIBRARIES = {"octavo": "torch", "llama.cpp": "llama_cpp", "huggingface": "torch"}
"""What an engine's memory is counted above."""
QUANTIZED_AT_LOAD = ("int8", "int4")


class TurnError(Exception):
    """A worker failed; ``str(error)`` is the last line that it wrote, or says that it took too long."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """An engine on one form of a model.

    Attributes:
        weights: a key of :attr:`ModelFiles.gguf`, or one of :data:`QUANTIZED_AT_LOAD`.
    """

    engine: str
    weights: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.engine} {self.weights}"

    def name_with(self, setting: str) -> str:
        """The name, with the setting if several are tried."""
        return f"{self.name} ({setting})" if len(self.settings) > 1 else self.name

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that are tried: each line of a table has the best."""
        if self.weights in QUANTIZED_AT_LOAD:
            return (self.weights,)
        if self.engine == "octavo" and self.weights != "bf16":
            return ("gguf",)  # the file's weights as they are
        return _SETTINGS[self.engine]

    def path(self, model: ModelFiles) -> Path:
        """What the engine loads: its usual format, so GGUF only where weights are quantised or nothing else is read."""
        is_plain = self.weights in ("bf16", *QUANTIZED_AT_LOAD)
        return model.folder if is_plain and self.engine != "llama.cpp" else model.gguf[self.weights]


def contestants(engines: Sequence[str], weights: Sequence[str] | None, model: ModelFiles) -> list[Contestant]:
    """All there are for a model, engine after engine for each kind of weights; ``weights`` selects."""
    kinds = ["bf16", *(kind for kind in model.gguf if kind != "bf16"), *QUANTIZED_AT_LOAD]
    found = [Contestant(engine, kind) for kind in kinds for engine in engines if _can_run(engine, kind)]
    return [one for one in found if weights is None or one.weights in weights]


def _can_run(engine: str, weights: str) -> bool:
    """Hugging Face computes with plain weights only; llama.cpp has no names for Octavo's own formats."""
    if engine == "octavo" or weights == "bf16":
        return True
    return engine == "llama.cpp" and weights not in QUANTIZED_AT_LOAD


@dataclass(frozen=True, slots=True)
class Machine:
    """How workers run.

    Attributes:
        pythons: the interpreter of each engine.
        num_threads: of each engine.
        patience: seconds that a turn may take.
    """

    pythons: dict[str, str]
    num_threads: int
    patience: float

    def environment(self, engine: str) -> dict[str, str]:
        """Environment variables of an engine's process."""
        return {**environment(self.pythons[engine]), "OMP_NUM_THREADS": str(self.num_threads)}


def bare_bytes(machine: Machine, engine: str, repeats: int = 3) -> float:
    """Resident memory of a process that has only imported the engine's library: torch, or llama.cpp itself.

    Raises:
        TurnError: it is not installed.
    """
    script = f"import sys, {_LIBRARIES[engine]}; print('{{}}', flush=True); sys.stdin.read()"
    sizes = []
    for _ in range(repeats):
        command = [machine.pythons[engine], "-c", script]
        with _running(command, machine.environment(engine), machine.patience) as process:
            process.read()
            sizes.append(process.resident_bytes())
    return statistics.median(sizes)


def run_turn(contestant: Contestant, setting: str, model: ModelFiles, machine: Machine, bare: float) -> dict[str, Any]:
    """One turn: its figures, the version of its engine, and the load of the machine as it began.

    Raises:
        TurnError: it failed.
    """
    job = Job(
        contestant.engine,
        str(contestant.path(model)),
        setting,
        machine.num_threads,
        _CACHE_TOKENS,
        model.cache_bytes_per_token,
    )
    command = [machine.pythons[contestant.engine], str(_WORKER), json.dumps(asdict(job))]
    load = os.getloadavg()[0]
    start = time.perf_counter()
    with _running(command, machine.environment(contestant.engine), machine.patience) as process:
        process.read()
        startup = time.perf_counter() - start
        done = process.read()
        memory = process.resident_bytes() - bare - done["cache_bytes"]
    figures = {**done["figures"], "memory_mb": memory / 1e6, "startup_s": startup}
    return {"version": done["version"], "load_average": load, "figures": figures}


class _Process:
    """A process that writes lines of JSON to standard output and ends when its standard input does."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], patience: float) -> None:
        self._process = process
        self._errors = errors
        self._patience = patience
        self._is_late = False

    def read(self) -> dict[str, Any]:
        """The next line; raises :class:`TurnError` if the process ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            message: dict[str, Any] = json.loads(line)
            return message
        self._process.wait()
        if self._is_late:
            raise TurnError(f"It took longer than {self._patience:.0f} seconds.")
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace").strip().splitlines()
        raise TurnError(written[-1] if written else f"The process ended with status {self._process.returncode}.")

    def resident_bytes(self) -> int:
        """Memory of the process and what it started."""
        return resident_bytes(psutil.Process(self._process.pid))

    def end_late(self) -> None:
        """Give up on the process."""
        self._is_late = True
        self._process.kill()


@contextmanager
def _running(command: list[str], env: dict[str, str], patience: float) -> Generator[_Process, None, None]:
    """Start a process; it ends with the context, or when it has taken too long."""
    with tempfile.TemporaryFile() as errors:
        started = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        process = _Process(started, errors, patience)
        timer = threading.Timer(patience, process.end_late)
        timer.start()
        try:
            yield process
        finally:
            started.communicate()
            timer.cancel()


def default_pythons(llama_python: str) -> dict[str, str]:
    """The interpreter of each engine: this one, but for llama.cpp."""
    return {"octavo": sys.executable, "llama.cpp": llama_python, "huggingface": sys.executable}
