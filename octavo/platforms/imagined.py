"""A GPU that need not be here, for ``octavo plan --gpu`` and ``--device-memory``."""

from dataclasses import dataclass

import torch

from octavo.config import EngineConfig
from octavo.platforms.cuda import CudaPlatform
from octavo.platforms.platform import DeviceMemory


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A kind of GPU.

    Attributes:
        name: its full name.
        num_bytes: total memory, as its driver reports it.
        bandwidth: of the memory by its data sheet, in bytes/s.
        has_float8: whether it multiplies float8.
        is_hopper: whether it is of compute capability 9.0.
    """

    name: str
    num_bytes: int
    bandwidth: float
    has_float8: bool = True
    is_hopper: bool = False


GPU_MODELS = {
    "a100": GpuModel("NVIDIA A100 80 GB", 81_920 << 20, 2.039e12, has_float8=False),
    "b200": GpuModel("NVIDIA B200", 183_359 << 20, 8.0e12),
    "h100": GpuModel("NVIDIA H100", 81_559 << 20, 3.35e12, is_hopper=True),
    "h200": GpuModel("NVIDIA H200", 143_771 << 20, 4.8e12, is_hopper=True),
    "l4": GpuModel("NVIDIA L4", 23_034 << 20, 0.3e12),
    "l40s": GpuModel("NVIDIA L40S", 46_068 << 20, 0.864e12),
    "rtx4090": GpuModel("NVIDIA GeForce RTX 4090", 24_564 << 20, 1.008e12),
}
"""Names for ``octavo plan --gpu``."""


class ImaginedGpu(CudaPlatform):
    """An NVIDIA GPU with all of its memory free; for planning only.

    Args:
        num_bytes: total memory.
        model: its kind, if it is known.
    """

    def __init__(self, num_bytes: int, model: GpuModel | None = None) -> None:
        self._num_bytes = num_bytes
        self._model = model

    def check_and_update_config(self, settings: EngineConfig) -> EngineConfig:
        return settings

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self._num_bytes, max(0, self._num_bytes - self.context_bytes))

    def used_by_process(self) -> int:
        return self.context_bytes

    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.bfloat16, torch.float16, torch.float32)

    def has_float8(self) -> bool:
        return self._model is None or self._model.has_float8

    def expands_caches(self) -> bool:
        return self._model is None or self._model.is_hopper

    def read_bandwidth(self) -> float:
        return 0.0 if self._model is None else self._model.bandwidth

    def describe(self) -> str:
        name = "a GPU of" if self._model is None else f"{self._model.name},"
        return f"{name} {self._num_bytes / (1 << 30):.2f} GiB"
