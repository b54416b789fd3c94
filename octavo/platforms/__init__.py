"""What a device can do; the place where further kinds of device plug in."""

from octavo.platforms.platform import CpuPlatform, CudaPlatform, Platform, select_platform

__all__ = ["CpuPlatform", "CudaPlatform", "Platform", "select_platform"]
