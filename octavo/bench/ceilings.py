"""Measures a device's ceilings: read bandwidth and GEMM rates, with which all other measurements are compared.

A GPU lowers its clock where it would draw more power than it may, within a tenth of a second. So GEMMs are timed after
others have run for a while: that is the rate which work of some length can have.

``python -m octavo.bench.ceilings`` measures in a separate process and prints JSON, so that nothing stays on the device.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from octavo.bench.limits import Ceilings
from octavo.config.settings import DeviceSettings
from octavo.platforms import DeviceRuntime, Platform, runtime_of, select_platform

_READ_BYTES = 4 << 30
_MATMUL_SIZE, _CPU_MATMUL_SIZE = 8192, 1024
_REPEATS = 10
_SUSTAINED_SECONDS = 0.7


def measure_ceilings(platform: Platform, dtype: torch.dtype) -> Ceilings:
    """Measure read bandwidth and GEMM rates; takes about three seconds on a GPU."""
    runtime = runtime_of(platform.device)
    if runtime.is_host:  # measured there, too, not computed from the memory's clock
        return Ceilings(platform.read_bandwidth(), _matmul_rate(runtime, dtype, _CPU_MATMUL_SIZE))
    bandwidth = _read_bandwidth(platform)
    matmul_rate = _matmul_rate(runtime, dtype, _MATMUL_SIZE, _SUSTAINED_SECONDS)
    return Ceilings(bandwidth, matmul_rate, _float8_rate(runtime) if platform.has_float8() else None)


def call_seconds(function: Callable[[], object], runtime: DeviceRuntime) -> float:
    """Seconds that the device takes for what one call queues."""
    begin, end = (runtime.new_event(has_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _median_seconds(function: Callable[[], object], runtime: DeviceRuntime, after: float = 0.0) -> float:
    """The median of several calls, after two warm-up calls and so many seconds of others."""
    end = time.perf_counter() + after
    while time.perf_counter() < end:
        call_seconds(function, runtime)
    return statistics.median([call_seconds(function, runtime) for _ in range(_REPEATS + 2)][2:])


def _read_bandwidth(platform: Platform) -> float:
    """Bytes/s of the fastest of several reductions over a buffer much larger than the caches."""
    num_bytes = min(_READ_BYTES, platform.memory().available // 2)
    rows = torch.zeros(num_bytes // (4 * 4096), 4096, device=platform.device)
    ways: list[Callable[[], object]] = [rows.sum, rows.amax, lambda: rows.sum(1), lambda: rows.amax(1)]
    return rows.numel() * 4 / min(_median_seconds(way, runtime_of(platform.device)) for way in ways)


def _matmul_rate(runtime: DeviceRuntime, dtype: torch.dtype, size: int, after: float = 0.0) -> float:
    """FLOP/s of products of squares, after so many seconds of them."""
    # Realistic values: GEMMs of zeros draw less power and run faster than real ones.
    a, b = (torch.randn(size, size, dtype=dtype, device=runtime.device) for _ in range(2))
    return 2.0 * size**3 / _median_seconds(lambda: torch.matmul(a, b), runtime, after)


def _float8_rate(runtime: DeviceRuntime) -> float:
    size = _MATMUL_SIZE
    a, b = (torch.randn(size, size, device=runtime.device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=runtime.device)

    def multiply() -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2.0 * size**3 / _median_seconds(multiply, runtime, _SUSTAINED_SECONDS)


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
                "float8_rate": ceilings.float8_rate,
                "formats": {
                    "has_float8": platform.has_float8(),
                    "has_blocks": platform.has_blocks(),
                    "has_groups": platform.has_groups(),
                },
                "has_float8_cache": platform.has_float8_cache(),
            }
        )
    )


if __name__ == "__main__":
    main()
