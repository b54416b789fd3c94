"""What a device can do; the place where further kinds of device plug in."""

from octavo.platforms.imagined import ImaginedGpu
from octavo.platforms.platform import (
    CpuPlatform,
    CudaPlatform,
    DeviceMemory,
    Platform,
    available_cores,
    compute_type,
    select_platform,
)

__all__ = [
    "CpuPlatform",
    "CudaPlatform",
    "DeviceMemory",
    "ImaginedGpu",
    "Platform",
    "available_cores",
    "compute_type",
    "select_platform",
]
