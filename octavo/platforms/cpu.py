"""The CPU that runs this program: the platform, and its runtime, in which device memory is host memory."""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from platform import machine
from typing import Any

import msgspec
import numpy as np
import psutil
import torch

from octavo.config import EngineConfig
from octavo.config.settings import DeviceSettings
from octavo.platforms.host_threads import HostThreads
from octavo.platforms.huge_pages import reserve_huge_heap
from octavo.platforms.native import instruction_set, native_kernels, why_missing
from octavo.platforms.numa import prefer_nodes
from octavo.platforms.placement import place_threads
from octavo.platforms.platform import DeviceMemory, Platform
from octavo.platforms.recording import Recording
from octavo.platforms.runtime import Captured, DeviceRuntime, Event, Graph, GraphCapture, SideStream
from octavo.platforms.tape_memory import TapeMemory
from octavo.platforms.topology import available_cores, this_process
from octavo.platforms.weight_memory import WeightMemory, huge_zeros

logger = logging.getLogger(__name__)


class CpuPlatform(Platform):
    """The processor that runs this program."""

    name = "cpu"
    kernel_set = "cpu"
    runs_ahead = False
    records_steps = True

    def apply_config_platform_defaults(self, settings: EngineConfig) -> EngineConfig:
        if machine() != "riscv64":
            return settings
        cache, scheduler = settings.cache, settings.scheduler
        if cache.enable_prefix_caching is None:
            cache = msgspec.structs.replace(cache, enable_prefix_caching=False)
        if scheduler.enable_chunked_prefill is None:
            scheduler = msgspec.structs.replace(scheduler, enable_chunked_prefill=False)
        if (cache, scheduler) != (settings.cache, settings.scheduler):
            logger.info("Prefix caching and chunked prefill are off by default on RISC-V; set them to turn them on.")
        return msgspec.structs.replace(settings, cache=cache, scheduler=scheduler)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        virtual = psutil.virtual_memory()
        limit = _control_group_limit()
        total = min(virtual.total, limit) if limit else virtual.total
        return DeviceMemory(total, min(virtual.available, total))

    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        if native_kernels() is not None:
            return (torch.bfloat16, torch.float16, torch.float32)
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return (torch.bfloat16, torch.float32)
        return (torch.float32,)

    def has_blocks(self) -> bool:
        return native_kernels() is not None

    def moe_backends(self) -> tuple[str, ...]:
        return ("torch",) if native_kernels() is None else ("native", "torch")

    def prepare(
        self, settings: DeviceSettings, num_bytes: int = 0, *, rank: int = 0, size: int = 1, owns_process: bool = False
    ) -> HostThreads:
        placement = place_threads(settings, this_process(), rank, size)
        logger.info("Computing with %s", placement)
        prefer_nodes(placement.nodes)
        if (native := native_kernels()) is not None:
            native.set_num_threads(placement.num_threads)
            cpus = np.array(placement.cpus, np.int32)
            native.bind_threads(cpus.ctypes.data, len(cpus), placement.is_pinned)
        else:
            _warn_of_missing_kernels()
            if num_bytes:
                reserve_huge_heap(num_bytes)
        return HostThreads(placement.num_threads, placement.cpus if owns_process else ())

    def read_bandwidth(self) -> float:
        return _measure_read_bandwidth()

    def describe(self) -> str:
        native = native_kernels()
        if native is None:
            kernels = f"PyTorch's kernels for {torch.backends.cpu.get_cpu_capability()}"
        else:
            kernels = f"compiled kernels for {instruction_set(native)}"
        return f"CPU with {available_cores()} cores ({kernels})"


class CpuRuntime(DeviceRuntime):
    """Work is complete when a call returns, so there is nothing to queue, to wait for or to copy."""

    is_host = True
    # Two float32 buffers of this size fit a core's share of the last-level cache.
    pass_elements = 1 << 19

    def make_current(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def return_memory(self) -> None:
        pass

    def new_event(self, *, has_timing: bool = False) -> Event:
        return _HostEvent()

    def side_stream(self) -> SideStream:
        return _HostStream()

    def graph_memory(self) -> TapeMemory:
        return TapeMemory()

    @contextmanager
    def graph_capture(self, memory: TapeMemory | None = None) -> Iterator[GraphCapture]:
        yield _HostGraphCapture(memory or self.graph_memory())

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def empty_host(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        # A mapping goes back to the system with the tensor, while malloc would keep the memory for what comes next.
        return huge_zeros(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return huge_zeros(shape, dtype)

    def weight_memory(self) -> AbstractContextManager[object]:
        return WeightMemory()

    def last_cache_bytes(self) -> int:
        return 4 << 20  # a guess: no portable interface tells


class _HostEvent:
    def __init__(self) -> None:
        self._seconds = 0.0

    def record(self) -> None:
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Any) -> float:
        milliseconds: float = 1e3 * (end_event._seconds - self._seconds)
        return milliseconds


class _HostStream:
    def use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def join(self) -> None:
        pass


class _HostGraphCapture:
    def __init__(self, memory: TapeMemory) -> None:
        self._memory = memory

    def capture(self, work: Captured) -> tuple[Graph, tuple[torch.Tensor, ...]]:
        native = native_kernels()
        if native is None:
            outputs = work()
        else:
            with Recording(native, self._memory) as recording:
                outputs = work()
            for output in outputs:
                self._memory.release(output)
            if not recording.others:
                return recording, outputs
            logger.debug("Work is called again in place of a replay, since it uses %s.", sorted(recording.others))
        return _HostGraph(work, outputs), outputs


class _HostGraph:
    """Calls the work again and stores its results where those of the first call are."""

    def __init__(self, work: Captured, outputs: tuple[torch.Tensor, ...]) -> None:
        self._work = work
        self._outputs = outputs

    @torch.inference_mode()
    def replay(self) -> None:
        for output, new in zip(self._outputs, self._work(), strict=True):
            output.copy_(new)


@cache
def _warn_of_missing_kernels() -> None:
    logger.warning(
        "No compiled CPU kernels run: %s. PyTorch computes instead, which can take two to three times as long.",
        why_missing(),
    )


def _control_group_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


@cache
def _measure_read_bandwidth() -> float:
    """Read bandwidth in bytes/s of summing a buffer larger than the caches; takes about 50 ms."""
    # NumPy requests huge pages; without them, TLB misses would dominate the measurement.
    buffer = torch.from_numpy(np.ones(64 << 18, np.float32))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - start)
    return buffer.numel() * buffer.element_size() / best
