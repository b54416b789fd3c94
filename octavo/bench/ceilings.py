"""Measures a device's ceilings: read bandwidth and GEMM rate, with which all other measurements are compared.

``python -m octavo.bench.ceilings`` measures in a separate process and prints JSON, so that nothing stays on the device.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from octavo.bench.limits import Ceilings
from octavo.platforms import select_platform

_READ_BYTES = 4 << 30
_MATMUL_SIZE, _CPU_MATMUL_SIZE = 8192, 1024
_REPEATS = 10


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure read bandwidth and GEMM rate; takes less than a second.

    Args:
        dtype: type of the matrices.
    """
    if device.type == "cpu":
        return Ceilings(select_platform("cpu").read_bandwidth(), _matmul_rate(device, dtype, _CPU_MATMUL_SIZE))
    return Ceilings(_read_bandwidth(device), _matmul_rate(device, dtype, _MATMUL_SIZE))


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call on the device: the median of several, after two warm-up calls."""
    return statistics.median([_seconds(function, device) for _ in range(_REPEATS + 2)][2:])


def _seconds(function: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _read_bandwidth(device: torch.device) -> float:
    """Bytes/s of the fastest of several reductions over a buffer much larger than the caches."""
    free, _ = torch.cuda.mem_get_info(device)
    rows = torch.zeros(min(_READ_BYTES, free // 2) // (4 * 4096), 4096, device=device)
    ways: list[Callable[[], object]] = [rows.sum, rows.amax, lambda: rows.sum(1), lambda: rows.amax(1)]
    return rows.numel() * 4 / min(seconds_of(way, device) for way in ways)


def _matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    # Realistic values: GEMMs of zeros draw less power and run faster than real ones.
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2.0 * size**3 / seconds_of(lambda: torch.matmul(a, b), device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--num-threads", type=int)
    given = parser.parse_args()
    platform = select_platform(given.device)
    platform.prepare(given.num_threads)
    ceilings = measure_ceilings(platform.device, getattr(torch, given.dtype))
    print(
        json.dumps(
            {
                "device": platform.describe(),
                "dtype": given.dtype,
                "read_bandwidth": ceilings.read_bandwidth,
                "matmul_rate": ceilings.matmul_rate,
            }
        )
    )


if __name__ == "__main__":
    main()
