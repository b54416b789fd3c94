"""A hypothetical GPU, for ``octavo plan --device-memory``."""

import torch

from octavo.config import EngineConfig
from octavo.platforms.cuda import CudaPlatform
from octavo.platforms.platform import DeviceMemory


class ImaginedGpu(CudaPlatform):
    """An NVIDIA GPU with the given memory, all of it free; for planning only.

    Args:
        num_bytes: total memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

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
        return True

    def read_bandwidth(self) -> float:
        return 0.0

    def describe(self) -> str:
        return f"a GPU of {self._num_bytes / (1 << 30):.2f} GiB"
