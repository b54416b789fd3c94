"""Times a kernel that has the device to itself."""

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from octavo.bench.kernels_case import Run

_GRAPH_SECONDS = 5e-3
_LEAST_CALLS, _MOST_CALLS = 4, 40
_REPLAYS = 15
_CPU_SECONDS = 0.02
_LEAST_CPU_SAMPLES, _MOST_CPU_SAMPLES = 3, 200


def time_run(run: Run, num_copies: int, device: torch.device) -> list[float]:
    """Seconds of one run, measured several times; the figure is the median.

    On a GPU, consecutive runs over all copies are captured in a graph, so that only device time is measured, including
    the overlap with neighbours that the kernel allows.
    """
    return _time_on_cpu(run, num_copies) if device.type == "cpu" else _time_on_gpu(run, num_copies)


def median(samples: list[float]) -> float:
    """The median of samples."""
    return statistics.median(samples)


def _time_on_cpu(run: Run, num_copies: int) -> list[float]:
    run(0)
    samples: list[float] = []
    while len(samples) < _LEAST_CPU_SAMPLES or (sum(samples) < _CPU_SECONDS and len(samples) < _MOST_CPU_SAMPLES):
        start = time.perf_counter()
        run(len(samples) % num_copies)
        samples.append(time.perf_counter() - start)
    return samples


def _time_on_gpu(run: Run, num_copies: int) -> list[float]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for copy in range(num_copies):  # Compiles kernels and makes workspaces, which a graph cannot.
            run(copy)
        stream.synchronize()
        alone = _seconds_between(lambda: run(0))
        wanted = round(_GRAPH_SECONDS / max(alone, 1e-6))
        num_calls = max(num_copies, _LEAST_CALLS, min(_MOST_CALLS, wanted))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for copy in itertools.islice(itertools.cycle(range(num_copies)), num_calls):
                run(copy)
        for _ in range(2):
            graph.replay()
        return [_seconds_between(graph.replay) / num_calls for _ in range(_REPLAYS)]


def _seconds_between(function: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
