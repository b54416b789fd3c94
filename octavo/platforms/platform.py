"""The supported platforms (CPU, CUDA): their memory, fast types, defaults and bandwidth."""

import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from platform import machine

import msgspec
import numpy as np
import psutil
import torch

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.platforms.huge_pages import reserve_huge_heap

_COMPUTE_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes: total, and free now."""

    total: int
    available: int


class Platform(ABC):
    """Properties of one kind of device, read once at startup."""

    name: str
    runs_ahead: bool
    """Whether the device works asynchronously, so that the host can prepare the next step meanwhile."""
    captures_graphs: bool = False
    """Whether steps are captured once and replayed."""
    graph_bytes: int = 0
    """Approximate device memory that the driver uses per captured step."""
    workspace_bytes: int = 0
    """Approximate device memory that kernels and libraries keep."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The torch device of tensors."""

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """The device's memory; on a CPU, within the limits of this process's control group."""

    def used_by_process(self) -> int:
        """Bytes of device memory that this process uses in total; 0 if the platform does not report it."""
        return 0

    def apply_config_platform_defaults(self, settings: EngineConfig) -> EngineConfig:
        """The settings with the platform's defaults for what is not set; called before planning."""
        return settings

    def check_and_update_config(self, settings: EngineConfig) -> EngineConfig:
        """The settings, checked and adapted to the platform; called after its defaults are applied.

        Raises:
            ConfigError: the platform does not support a setting.
        """
        return settings

    @abstractmethod
    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        """Types the device computes in at full speed, the preferred first."""

    @abstractmethod
    def prepare(self, num_threads: int | None, num_bytes: int = 0) -> None:
        """Set up this process for computing.

        Args:
            num_threads: host threads for computation; None uses the platform's default.
            num_bytes: memory that weights will need.
        """

    @abstractmethod
    def read_bandwidth(self) -> float:
        """Estimated memory read bandwidth in bytes/s, for the speed limit in the plan; 0 if unknown."""

    @abstractmethod
    def describe(self) -> str:
        """The device's name for messages."""


class CpuPlatform(Platform):
    """The processor that runs this program."""

    name = "cpu"
    runs_ahead = False

    def apply_config_platform_defaults(self, settings: EngineConfig) -> EngineConfig:
        if machine() != "riscv64":
            return settings
        cache, scheduler = settings.cache, settings.scheduler
        if cache.enable_prefix_caching is None:
            cache = msgspec.structs.replace(cache, enable_prefix_caching=False)
        if scheduler.enable_chunked_prefill is None:
            scheduler = msgspec.structs.replace(scheduler, enable_chunked_prefill=False)
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
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return (torch.bfloat16, torch.float32)
        return (torch.float32,)

    def prepare(self, num_threads: int | None, num_bytes: int = 0) -> None:
        torch.set_num_threads(num_threads or available_cores())
        if num_bytes:
            reserve_huge_heap(num_bytes)

    def read_bandwidth(self) -> float:
        return _measure_read_bandwidth()

    def describe(self) -> str:
        return f"CPU with {available_cores()} cores ({torch.backends.cpu.get_cpu_capability()})"


class CudaPlatform(Platform):
    """An NVIDIA GPU."""

    name = "cuda"
    runs_ahead = True
    captures_graphs = True
    graph_bytes = 4 << 20
    workspace_bytes = 256 << 20
    context_bytes = 527 << 20
    """Size of a new driver context, measured on an H200; no API reports it."""

    def __init__(self) -> None:
        self._free_at_start = torch.cuda.mem_get_info()[0]
        self._reserved_at_start = torch.cuda.memory_reserved()

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def memory(self) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(total, free)

    def used_by_process(self) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # Growth outside torch's allocator (kernels, graphs) shows only in the free memory. If another process grows
        # meanwhile, its part counts as ours, which is on the safe side: that memory is not available either way.
        grown = self._free_at_start - torch.cuda.mem_get_info()[0]
        return self.context_bytes + max(torch.cuda.memory_reserved(), self._reserved_at_start + grown)

    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        if torch.cuda.get_device_capability() >= (8, 0):
            return (torch.bfloat16, torch.float16, torch.float32)
        return (torch.float16, torch.float32)

    def prepare(self, num_threads: int | None, num_bytes: int = 0) -> None:
        torch.set_num_threads(num_threads or 1)

    def read_bandwidth(self) -> float:
        properties = torch.cuda.get_device_properties(self.device)
        try:
            # Two transfers per clock; the clock is in kHz, the width in bits.
            return 2.0 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
        except AttributeError:  # CUDA 13 removed the clock from the property that some builds of torch read
            return 0.0

    def describe(self) -> str:
        return torch.cuda.get_device_name()


def select_platform(device: str) -> Platform:
    """The platform for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: CUDA was requested and is not available.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError("device is 'cuda', but no usable CUDA device was found; check the driver or use 'cpu'.")
    if device == "cuda" or (device == "auto" and has_cuda):
        return CudaPlatform()
    return CpuPlatform()


def compute_type(name: str) -> torch.dtype | None:
    """The torch type for a checkpoint's type name, None if it is not a compute type."""
    return _COMPUTE_TYPES.get(name)


def available_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
