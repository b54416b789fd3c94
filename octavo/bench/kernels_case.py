"""Definitions for kernel cases: the step (setting), the work, and the case."""

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from octavo.bench.ceilings import call_seconds
from octavo.hub.model_config import ModelConfig
from octavo.platforms import DeviceRuntime, Platform

Phase = Literal["decode", "prefill"]
Run = Callable[[int], object]
"""Runs once, on the copy of the memory with the given index."""

_CACHES_EXCEEDED = 3
_MOST_COPIES = 64
_GRAPH_SECONDS = 5e-3
_LEAST_CALLS, _MOST_CALLS = 4, 40
_REPLAYS = 15
_CPU_SECONDS = 0.02
_LEAST_CPU_SAMPLES, _MOST_CPU_SAMPLES = 3, 200


@dataclass(frozen=True, slots=True)
class Setting:
    """A step of one model.

    Attributes:
        num_rows: number of requests; all decode a token, or all are fresh prompts.
        context: tokens per request, including the step's.
        cache_bytes: size of the device's last-level cache.
        kv_dtype: of cached keys and values; one of 8 bits has a scale per token and head. None for the model's type.
    """

    config: ModelConfig
    dtype: torch.dtype
    platform: Platform
    phase: Phase
    num_rows: int
    context: int
    cache_bytes: int
    kv_dtype: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """Where the step's tensors are."""
        return self.platform.device

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return self.num_rows if self.phase == "decode" else self.num_rows * self.context

    def random(self, *shape: int) -> torch.Tensor:
        """Normally distributed values of the model's type."""
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def weight(self, num_outputs: int, num_inputs: int) -> torch.Tensor:
        """A random weight that preserves the scale of its input."""
        return self.random(num_outputs, num_inputs).mul_(num_inputs**-0.5)

    def indices(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def copies(self, num_bytes: int) -> int:
        """Number of copies to alternate between so that none of them is in the cache."""
        return max(1, min(_MOST_COPIES, -(-_CACHES_EXCEEDED * self.cache_bytes // max(num_bytes, 1))))


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel with its memory, ready to run.

    Attributes:
        run: Octavo's kernel.
        num_bytes: minimum number of bytes to read and write.
        num_operations: minimum number of GEMM operations.
        libraries: other implementations of the same result, by name.
        num_copies: copies of weights or caches to alternate between.
    """

    run: Run
    num_bytes: float
    num_operations: float = 0.0
    libraries: dict[str, Run] = field(default_factory=dict)
    num_copies: int = 1


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One entry of the list of kernels.

    Attributes:
        make: allocates and returns the work.
        per_layer, per_step: how often a step runs it: in each layer, and besides; 0 if another case includes it.
        kernel_set: the only set that has it; None if all have it.
        quantizes: whether it is measured with a quantised cache, too.
    """

    name: str
    make: Callable[[Setting], Work]
    per_layer: int = 0
    per_step: int = 0
    phases: tuple[Phase, ...] = ("decode", "prefill")
    kernel_set: str | None = None
    quantizes: bool = True


def time_run(run: Run, num_copies: int, runtime: DeviceRuntime) -> list[float]:
    """Seconds of one run, measured several times; the figure is the median.

    On a GPU, consecutive runs over all copies are captured in a graph, so that only device time is measured, including
    the overlap with neighbours that the kernel allows.
    """
    return _time_calls(run, num_copies, runtime) if runtime.is_host else _time_in_graph(run, num_copies, runtime)


def median(samples: list[float]) -> float:
    """The median of samples."""
    return statistics.median(samples)


def _time_calls(run: Run, num_copies: int, runtime: DeviceRuntime) -> list[float]:
    run(0)
    samples: list[float] = []
    while len(samples) < _LEAST_CPU_SAMPLES or (sum(samples) < _CPU_SECONDS and len(samples) < _MOST_CPU_SAMPLES):
        samples.append(call_seconds(partial(run, len(samples) % num_copies), runtime))
    return samples


def _time_in_graph(run: Run, num_copies: int, runtime: DeviceRuntime) -> list[float]:
    def run_all() -> tuple[torch.Tensor, ...]:
        for copy in itertools.islice(itertools.cycle(range(num_copies)), num_calls):
            run(copy)
        return ()

    with runtime.graph_capture() as graphs:
        for copy in range(num_copies):  # Compiles kernels and makes workspaces, which a graph cannot.
            run(copy)
        runtime.synchronize()
        wanted = round(_GRAPH_SECONDS / max(call_seconds(partial(run, 0), runtime), 1e-6))
        num_calls = max(num_copies, _LEAST_CALLS, min(_MOST_CALLS, wanted))
        graph, _ = graphs.capture(run_all)
        for _ in range(2):
            graph.replay()
        return [call_seconds(graph.replay, runtime) / num_calls for _ in range(_REPLAYS)]
