"""Times a kernel that has the device to itself."""

import itertools
import statistics
from functools import partial

import torch

from octavo.bench.ceilings import call_seconds
from octavo.bench.kernels_case import Run
from octavo.platforms import DeviceRuntime

_GRAPH_SECONDS = 5e-3
_LEAST_CALLS, _MOST_CALLS = 4, 40
_REPLAYS = 15
_CPU_SECONDS = 0.02
_LEAST_CPU_SAMPLES, _MOST_CPU_SAMPLES = 3, 200


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
