"""The interface of a platform: what one kind of device has, is good at and supports, read once at startup.

Implementations: ``cpu.py`` and ``cuda.py``; ``select.py`` chooses. What code does *with* a device (streams, events,
pinned memory, graphs) is in ``runtime.py``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from octavo.config import EngineConfig
from octavo.config.settings import DeviceSettings
from octavo.platforms.host_threads import HostThreads

_COMPUTE_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes: total, and free now."""

    total: int
    available: int


class Platform(ABC):
    """Properties of one kind of device, read once at startup."""

    name: str
    kernel_set: str
    """The set of kernels for its devices; see :func:`octavo.kernels.bind_kernels`."""
    runs_ahead: bool
    """Whether the device works asynchronously, so that the host can prepare the next step meanwhile."""
    collectives: str = "gloo"
    """How its devices exchange tensors; see :func:`octavo.parallel.connect`."""
    captures_graphs: bool = False
    """Whether steps are captured once and replayed."""
    records_steps: bool = False
    """Whether steps are captured when they first occur: capturing costs next to nothing."""
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

    def has_float8(self) -> bool:
        """Whether the device multiplies matrices of float8 values."""
        return False

    def has_float8_cache(self) -> bool:
        """Whether its attention reads keys and values of float8."""
        return True

    def expands_caches(self) -> bool:
        """Whether its prefill has keys and values of a quantised cache in the compute type, in a buffer of its own."""
        return False

    def has_blocks(self) -> bool:
        """Whether the device multiplies weights of integers in groups (GGUF's formats, int8, int4)."""
        return False

    def has_groups(self) -> bool:
        """Whether the device has kernels that unpack weights of integers, which activations of any type multiply."""
        return False

    def moe_backends(self) -> tuple[str, ...]:
        """The device's kernels for experts, the fastest first."""
        return ("torch",)

    @abstractmethod
    def prepare(
        self, settings: DeviceSettings, num_bytes: int = 0, *, rank: int = 0, size: int = 1, owns_process: bool = False
    ) -> HostThreads:
        """Set up this process for computing.

        Args:
            settings: how many threads compute on the host, and where.
            num_bytes: memory that weights will need.
            rank, size: this process's number among those that share the host's cores, and theirs.
            owns_process: the process belongs to the engine, so that all of its threads may be bound to CPUs.

        Returns:
            The context for all that is computed: only there PyTorch uses so many threads.

        Raises:
            ConfigError: the settings do not fit the host's CPUs.
        """

    @abstractmethod
    def read_bandwidth(self) -> float:
        """Estimated memory read bandwidth in bytes/s, for the speed limit in the plan; 0 if unknown."""

    @abstractmethod
    def describe(self) -> str:
        """The device's name for messages."""


def compute_type(name: str) -> torch.dtype | None:
    """The torch type for a checkpoint's type name, None if it is not a compute type."""
    return _COMPUTE_TYPES.get(name)
