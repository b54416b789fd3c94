"""NVIDIA GPUs: the platform, its runtime, and what Triton kernels ask about a GPU."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch

from octavo.config import EngineConfig
from octavo.config.settings import DeviceSettings
from octavo.errors import ConfigError
from octavo.garbage import garbage_collection_off
from octavo.platforms.host_threads import HostThreads
from octavo.platforms.platform import DeviceMemory, Platform
from octavo.platforms.runtime import Captured, DeviceRuntime, Event, Graph, GraphCapture, SideStream


def begin_context() -> None:
    """Start to create the context of the first GPU, in a thread that lets Python run, as torch's own start does not.

    Whoever uses the GPU first waits for it. Does nothing if this process uses a GPU already, perhaps another one.
    """
    if not torch.cuda.is_initialized():
        threading.Thread(target=_create_context, name="cuda-context", daemon=True).start()


def _create_context() -> None:
    with suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        # What is wrong is reported when torch meets it.
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


class CudaPlatform(Platform):
    """An NVIDIA GPU.

    Args:
        index: its number, which becomes the calling thread's device; None for the device that is current.
    """

    name = "cuda"
    kernel_set = "cuda"
    runs_ahead = True
    collectives = "nccl"
    captures_graphs = True
    graph_bytes = 4 << 20
    workspace_bytes = 256 << 20
    context_bytes = 527 << 20
    """Size of a new driver context, measured on an H200; no API reports it."""

    def __init__(self, index: int | None = None) -> None:
        if index is not None:
            torch.cuda.set_device(index)
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

    def check_and_update_config(self, settings: EngineConfig) -> EngineConfig:
        size, num_devices = settings.device.tensor_parallel_size, torch.cuda.device_count()
        if size > num_devices and settings.device.distributed_executor_backend != "ray":
            raise ConfigError(f"tensor_parallel_size is {size}, but this machine has {num_devices} GPUs.")
        return settings

    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        if torch.cuda.get_device_capability() >= (8, 0):
            return (torch.bfloat16, torch.float16, torch.float32)
        return (torch.float16, torch.float32)

    def has_float8(self) -> bool:
        return torch.cuda.get_device_capability() >= (8, 9)

    def has_float8_cache(self) -> bool:
        return self.has_float8()

    def expands_caches(self) -> bool:
        return torch.cuda.get_device_capability() == (9, 0)

    def has_groups(self) -> bool:
        return True

    def moe_backends(self) -> tuple[str, ...]:
        return ("triton",)

    def prepare(
        self, settings: DeviceSettings, num_bytes: int = 0, *, rank: int = 0, size: int = 1, owns_process: bool = False
    ) -> HostThreads:
        return HostThreads(settings.num_threads or 1)

    def read_bandwidth(self) -> float:
        properties = torch.cuda.get_device_properties(self.device)
        try:
            # Two transfers per clock; the clock is in kHz, the width in bits.
            return 2.0 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
        except AttributeError:  # CUDA 13 removed the clock from the property that some builds of torch read
            return 0.0

    def describe(self) -> str:
        return torch.cuda.get_device_name()


class CudaRuntime(DeviceRuntime):
    """Work is queued in streams; only pinned host memory is copied asynchronously."""

    is_host = False
    pass_elements = 1 << 24

    def make_current(self) -> None:
        torch.cuda.set_device(self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def return_memory(self) -> None:
        torch.cuda.empty_cache()

    def new_event(self, *, has_timing: bool = False) -> Event:
        return torch.cuda.Event(enable_timing=has_timing)

    def side_stream(self) -> SideStream:
        return _CudaSideStream(self.device)

    def graph_memory(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @contextmanager
    def graph_capture(self, memory: Any = None) -> Iterator[GraphCapture]:
        stream = self.side_stream()
        # A collection in the middle of a capture could free device memory there.
        with stream.use(), garbage_collection_off():
            yield _CudaGraphCapture(memory or self.graph_memory())
        stream.join()

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.pin_memory().to(self.device, non_blocking=True)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor, non_blocking=True)

    def empty_host(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def last_cache_bytes(self) -> int:
        size: int = torch.cuda.get_device_properties(self.device).L2_cache_size
        return size


class _CudaSideStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def use(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class _CudaGraphCapture:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def capture(self, work: Captured) -> tuple[Graph, tuple[torch.Tensor, ...]]:
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph() collects garbage and synchronises every time, which takes longer than the capture.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            outputs = work()
        finally:
            graph.capture_end()
        return graph, outputs


def cuda_version() -> tuple[int, int]:
    """Of the toolkit that torch was built with; ``(0, 0)`` for none."""
    parts = (torch.version.cuda or "0.0").split(".")
    return int(parts[0]), int(parts[1])


def compute_capability(device: torch.device) -> tuple[int, int]:
    """An NVIDIA GPU's compute capability, such as (9, 0) for Hopper; (0, 0) for other devices."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def num_multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of an NVIDIA GPU."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def current_stream(device: torch.device) -> int:
    """The driver's handle of torch's current stream on an NVIDIA GPU."""
    # torch.cuda.current_stream() makes an object first, which takes ten times as long.
    stream: int = torch._C._cuda_getCurrentRawStream(device.index)
    return stream


def num_devices() -> int:
    """Number of GPUs that this process sees."""
    return torch.cuda.device_count()


def device_name(index: int) -> str:
    """A GPU's name, by its number."""
    return torch.cuda.get_device_name(index)
