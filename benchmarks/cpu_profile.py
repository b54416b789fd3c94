"""Where a CPU step's time goes, kernel by kernel, beside what the machine reaches in the same run.

    python benchmarks/cpu_profile.py
    python benchmarks/cpu_profile.py --weights bf16 int4 --cases decode_1 prefill_512 --output-json profile.json

The cases are those of ``cpu_peers.py`` (:data:`cpu_peers_worker.WORKLOADS`). Limits are measured first: reading memory,
and the fastest large GEMM in bfloat16 and in int8, of PyTorch's library or Octavo's own.

Kernels are timed around each call of the compiled module, with recorded steps off (``enforce_eager``). A GEMM's time
includes the preparation of its inputs, attention's the rotation and the cache write. At batch 1 weights are fetched
ahead while Python runs between two calls, so kernels look faster than in a recorded step. The host's share is what is
left of a step, recorded where possible, beside the time inside compiled calls. Bytes are those that a kernel has to
read at least: packed weights, or keys and values.
"""

import argparse
import ctypes
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import reload
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from common import describe
from cpu_peers_engines import MAX_BATCH, MAX_LENGTH
from cpu_peers_models import NAMES, prepare
from cpu_peers_turns import QUANTIZED_AT_LOAD, Contestant
from cpu_peers_worker import WORKLOADS, Workload

from octavo import LLM, PromptType, SamplingParams
from octavo.kernels.cpu import register
from octavo.kernels.cpu.native_linear import Int8Linear, NativeLinear
from octavo.platforms import select_platform
from octavo.platforms.native import NativeKernels, native_kernels

SETTINGS: dict[str, Any] = {
    "dtype": "bfloat16",
    "enable_prefix_caching": False,
    "max_num_seqs": MAX_BATCH,
    "max_model_len": MAX_LENGTH,
    "log_level": "warning",
}
WEIGHTS = ("bf16", "int8", "int4", "q4_1")
_GEMM = (3072, 3072, 512)
"""Outputs, inputs and rows of the GEMMs that limits are measured with."""


@dataclass
class Kernel:
    """Calls of one kernel: their number, seconds, bytes that have to be read and operations."""

    calls: float = 0
    seconds: float = 0
    num_bytes: float = 0
    operations: float = 0

    def __sub__(self, other: "Kernel") -> "Kernel":
        return Kernel(*(mine - its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def add(self, seconds: float, num_bytes: float, operations: float) -> None:
        """Add a call."""
        self.calls += 1
        self.seconds += seconds
        self.num_bytes += num_bytes
        self.operations += operations


class TimedKernels(ModuleType):
    """The compiled module, with its calls timed while ``is_on``; stands in for it among Python's modules."""

    def __init__(self, native: NativeKernels) -> None:
        super().__init__(native.__name__)  # type: ignore[attr-defined]
        self.native = native
        self.is_on = False
        self.kernels: dict[str, Kernel] = defaultdict(Kernel)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of modules
            raise AttributeError(name)
        function = getattr(self.native, name)

        def timed(*arguments: Any) -> Any:
            if not self.is_on:
                return function(*arguments)
            start = time.perf_counter()
            result = function(*arguments)
            seconds = time.perf_counter() - start
            label, num_bytes, operations = self._work(name, arguments)
            self.kernels[label].add(seconds, num_bytes, operations)
            return result

        setattr(self, name, timed)
        return timed

    def install(self) -> None:
        """Let engines that start from now on call this module."""
        sys.modules[self.__name__] = self
        native_kernels.cache_clear()
        reload(register)

    def taken(self) -> dict[str, Kernel]:
        """What was timed since the last call."""
        found, self.kernels = self.kernels, defaultdict(Kernel)
        return found

    def _work(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, float, float]:
        """Label, bytes and operations of a call."""
        if name == "linear":
            rows, outputs, inputs, weight_type = (arguments[index] for index in (4, 5, 6, 9))
            num_bytes = self.native.packed_bytes(weight_type, outputs, inputs)
            return f"linear {outputs}x{inputs}", num_bytes, 2.0 * rows * outputs * inputs
        if name == "attention":
            return name, *attention_work(*arguments[1:4], *arguments[14:17])
        return name, 0, 0


def attention_work(counts: int, starts: int, lengths: int, heads: int, kv_heads: int, size: int) -> tuple[float, float]:
    """Bytes of keys and values of two bytes, and operations; the rows' places are addresses of int32."""

    def numbers(address: int, count: int) -> list[int]:
        return list((ctypes.c_int32 * count).from_address(address))

    (num_rows,) = numbers(counts, 1)
    first, seq_lens = numbers(starts, num_rows + 1), numbers(lengths, num_rows)
    seen = 0.0
    for begin, end, length in zip(first, first[1:], seq_lens, strict=False):
        seen += (end - begin) * (length - (end - begin - 1) / 2)
    return sum(seq_lens) * kv_heads * size * 2 * 2, 4 * heads * size * seen


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes/s read, operations/s of GEMMs in bfloat16 and int8, each with all threads."""

    read: float
    bf16: float
    int8: float


def measure_limits(native: NativeKernels, threads: int) -> Limits:
    """Measure what the machine reaches."""
    outputs, inputs, rows = _GEMM
    weight, x = torch.randn(outputs, inputs).bfloat16(), torch.randn(rows, inputs).bfloat16()
    codes = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    x_codes = torch.randint(-127, 128, (rows, inputs), dtype=torch.int8)
    own_bf16, own_int8 = (
        NativeLinear(native, weight.clone(), None),
        Int8Linear(native, codes, torch.ones(outputs), None),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    library = _rate(lambda: x @ weight.T), _rate(lambda: torch._int_mm(x_codes, codes.T))
    read = select_platform("cpu").read_bandwidth()
    torch.set_num_threads(before)
    return Limits(read, max(library[0], _rate(lambda: own_bf16(x))), max(library[1], _rate(lambda: own_int8(x))))


def _rate(multiply: Callable[[], object]) -> float:
    """Operations/s of the fastest of some GEMMs."""
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - start)
    outputs, inputs, rows = _GEMM
    return 2.0 * outputs * inputs * rows / min(seconds)


@dataclass(frozen=True, slots=True)
class Profile:
    """A case's step on average.

    Attributes:
        steps: that were measured.
        seconds: of a step that nobody times, with recordings.
        compiled: of those, inside the compiled module.
        kernels: per step, with recordings off.
    """

    steps: int
    seconds: float
    compiled: float
    kernels: dict[str, Kernel]

    @property
    def host_share(self) -> float:
        """Of the step outside compiled calls."""
        return 1 - self.compiled / self.seconds


class Runner:
    """A model with recorded steps and one without, on the same timed kernels."""

    def __init__(self, path: str, settings: dict[str, Any], timed: TimedKernels) -> None:
        self._timed = timed
        self._recorded = LLM(path, **settings)
        self._eager = LLM(path, **settings, enforce_eager=True)
        self._random = random.Random(0)
        self._token_ids = range(100, len(self._recorded.get_tokenizer()) - 10)

    def profile(self, load: Workload, repeats: int) -> Profile:
        """Measure a case some times, and average."""
        first = 1 if load.counts == "decoded" else 0
        self._timed.is_on = False
        self._run(self._recorded, load, load.output_len)
        seconds = sum(self._run(self._recorded, load, load.output_len) for _ in range(repeats))
        seconds -= first * sum(self._run(self._recorded, load, 1) for _ in range(repeats))
        compiled, eager = (
            self._kernels(engine, load, repeats, has_first=bool(first)) for engine in (self._recorded, self._eager)
        )
        steps = round(eager["prepare_inputs"].calls)
        kernels = {
            name: Kernel(*(value / steps for value in asdict(kernel).values())) for name, kernel in eager.items()
        }
        total = sum(kernel.seconds for kernel in compiled.values())
        return Profile(steps, seconds / steps, total / steps, kernels)

    def _kernels(self, engine: LLM, load: Workload, repeats: int, *, has_first: bool) -> dict[str, Kernel]:
        """Kernels of all repeats; without those of the prompts, if answers' first tokens do not count."""
        self._timed.taken()
        self._timed.is_on = True
        for _ in range(repeats):
            self._run(engine, load, load.output_len)
        found = self._timed.taken()
        for _ in range(repeats if has_first else 0):
            self._run(engine, load, 1)
        first = self._timed.taken()
        self._timed.is_on = False
        return {name: kernel - first.get(name, Kernel()) for name, kernel in found.items()}

    def _run(self, engine: LLM, load: Workload, output_len: int) -> float:
        prompts: list[PromptType] = [
            {"prompt_token_ids": self._random.choices(self._token_ids, k=load.input_len)}
            for _ in range(load.batch_size)
        ]
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
        start = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start


def table(title: str, profile: Profile, limits: Limits, gemm_limit: float) -> str:
    """A case's kernels, the slowest first; attention multiplies in bfloat16 whatever the weights are."""
    lines = [
        f"{title}: {profile.seconds * 1e3:.2f} ms a step, host {profile.host_share:.1%}",
        f"  {'kernel':22}{'calls':>7}{'us':>10}{'share':>8}{'GB/s':>9}{'of limit':>10}{'G/s':>9}{'of limit':>10}",
    ]
    total = sum(kernel.seconds for kernel in profile.kernels.values())
    for name, kernel in sorted(profile.kernels.items(), key=lambda item: -item[1].seconds):
        if kernel.seconds < total / 200:
            continue
        line = f"  {name:22}{kernel.calls:7.0f}{kernel.seconds * 1e6:10.0f}{kernel.seconds / total:8.1%}"
        if kernel.operations:
            peak = limits.bf16 if name == "attention" else gemm_limit
            rates = (kernel.num_bytes / kernel.seconds, limits.read), (kernel.operations / kernel.seconds, peak)
            line += "".join(f"{rate / 1e9:9.1f}{rate / limit:10.0%}" for rate, limit in rates)
        lines.append(line)
    return "\n".join(lines)


def source_of(name: str, weights: str, work: Path) -> tuple[str, dict[str, Any]]:
    """What an engine loads for a kind of weights, and with which settings."""
    if Path(name).is_dir():
        return name, {"quantization": weights} if weights in QUANTIZED_AT_LOAD else {}
    entry = Contestant("octavo", weights)
    quantization = entry.settings[0]
    return str(entry.path(prepare(name, work))), {"quantization": quantization} if quantization else {}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help=f"{', '.join(NAMES)}, a GGUF file, or a folder")
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, help="bf16, int8, int4, or a kind of GGUF")
    parser.add_argument("--cases", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "octavo-bench-models")
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    native = native_kernels()
    if native is None:
        parser.error("there are no compiled kernels")
    environment = describe()
    native.set_num_threads(given.threads)
    limits = measure_limits(native, given.threads)
    print(
        f"read {limits.read / 1e9:.1f} GB/s, bf16 {limits.bf16 / 1e9:.0f} GFLOP/s, int8 {limits.int8 / 1e9:.0f} GOP/s"
    )
    timed = TimedKernels(native)
    timed.install()
    profiles: dict[str, Any] = {}
    for weights in given.weights:
        path, quantization = source_of(given.model, weights, given.work)
        runner = Runner(path, SETTINGS | quantization | {"num_threads": given.threads}, timed)
        gemm_limit = limits.bf16 if weights == "bf16" else limits.int8
        for case in given.cases:
            profile = runner.profile(WORKLOADS[case], given.repeats)
            print(f"\n{table(f'{weights} {case}', profile, limits, gemm_limit)}", flush=True)
            profiles[f"{weights} {case}"] = asdict(profile) | {"host_share": profile.host_share}
    if given.output_json is not None:
        found = {**environment, "limits": asdict(limits), "profiles": profiles}
        given.output_json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
