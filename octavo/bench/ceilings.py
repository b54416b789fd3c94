"""Measures a device's ceilings: read bandwidth and GEMM rate, with which all other measurements are compared.

``python -m octavo.bench.ceilings`` measures in a separate process and prints JSON, so that nothing stays on the device.
"""

import argparse
import json
import statistics
from collections.abc import Callable

import torch

from octavo.bench.limits import Ceilings
from octavo.config.settings import DeviceSettings
from octavo.platforms import DeviceRuntime, Platform, runtime_of, select_platform

_READ_BYTES = 4 << 30
_MATMUL_SIZE, _CPU_MATMUL_SIZE = 8192, 1024
_REPEATS = 10


def measure_ceilings(platform: Platform, dtype: torch.dtype) -> Ceilings:
    """Measure read bandwidth and GEMM rate; takes less than a second."""
    runtime = runtime_of(platform.device)
    if runtime.is_host:  # measured there, too, not computed from the memory's clock
        return Ceilings(platform.read_bandwidth(), _matmul_rate(runtime, dtype, _CPU_MATMUL_SIZE))
    return Ceilings(_read_bandwidth(platform), _matmul_rate(runtime, dtype, _MATMUL_SIZE))


def call_seconds(function: Callable[[], object], runtime: DeviceRuntime) -> float:
    """Seconds that the device takes for what one call queues."""
    begin, end = (runtime.new_event(has_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _median_seconds(function: Callable[[], object], runtime: DeviceRuntime) -> float:
    """The median of several calls, after two warm-up calls."""
    return statistics.median([call_seconds(function, runtime) for _ in range(_REPEATS + 2)][2:])


def _read_bandwidth(platform: Platform) -> float:
    """Bytes/s of the fastest of several reductions over a buffer much larger than the caches."""
    num_bytes = min(_READ_BYTES, platform.memory().available // 2)
    rows = torch.zeros(num_bytes // (4 * 4096), 4096, device=platform.device)
    ways: list[Callable[[], object]] = [rows.sum, rows.amax, lambda: rows.sum(1), lambda: rows.amax(1)]
    return rows.numel() * 4 / min(_median_seconds(way, runtime_of(platform.device)) for way in ways)


def _matmul_rate(runtime: DeviceRuntime, dtype: torch.dtype, size: int) -> float:
    # Realistic values: GEMMs of zeros draw less power and run faster than real ones.
    a, b = (torch.randn(size, size, dtype=dtype, device=runtime.device) for _ in range(2))
    return 2.0 * size**3 / _median_seconds(lambda: torch.matmul(a, b), runtime)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--num-threads", type=int)
    given = parser.parse_args()
    platform = select_platform(given.device)
    with platform.prepare(DeviceSettings(num_threads=given.num_threads)):
        ceilings = measure_ceilings(platform, getattr(torch, given.dtype))
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
