"""Platforms: what each kind of device can do. New kinds of devices plug in here; see ``platform.py``."""

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
