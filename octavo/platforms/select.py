"""Chooses the platform, and finds the runtime of a device."""

import logging
from functools import cache

import torch

from octavo.errors import ConfigError
from octavo.platforms import cuda
from octavo.platforms.cpu import CpuPlatform, CpuRuntime
from octavo.platforms.cuda import CudaPlatform, CudaRuntime
from octavo.platforms.platform import Platform
from octavo.platforms.runtime import DeviceRuntime

logger = logging.getLogger(__name__)

_RUNTIMES: dict[str, type[DeviceRuntime]] = {"cpu": CpuRuntime, "cuda": CudaRuntime}
"""Runtimes by torch's device type."""


def platform_type(device: str) -> type[Platform]:
    """The type of platform for ``auto``, ``cpu`` or ``cuda``; creates no context on a GPU.

    Raises:
        ConfigError: CUDA was requested and is not available.
    """
    if device == "cuda" and _is_rocm_build():
        raise ConfigError("device is 'cuda', but this torch is built for ROCm, which is not supported yet; use 'cpu'.")
    if device == "cuda" and not has_cuda():
        raise ConfigError("device is 'cuda', but no usable CUDA device was found; check the driver or use 'cpu'.")
    if device == "auto" and _is_rocm_build() and torch.cuda.is_available():
        _warn_of_rocm()
    return CudaPlatform if device == "cuda" or (device == "auto" and has_cuda()) else CpuPlatform


def begin_device(device: str) -> None:
    """A hint that :func:`select_platform` follows for ``auto``, ``cpu`` or ``cuda`` without an index, or with 0."""
    if device != "cpu" and torch.version.cuda is not None:
        cuda.begin_context()


def select_platform(device: str, index: int | None = None) -> Platform:
    """The platform for ``auto``, ``cpu`` or ``cuda``.

    Args:
        index: the number of the GPU to use, if there are GPUs; None for the current one.

    Raises:
        ConfigError: see :func:`platform_type`.
    """
    selected = platform_type(device)
    return CudaPlatform(index) if selected is CudaPlatform else selected()


@cache
def runtime_of(device: torch.device) -> DeviceRuntime:
    """The runtime of a tensor's device."""
    return _RUNTIMES[device.type](device)


def has_cuda() -> bool:
    """Whether there is an NVIDIA GPU that this torch can use; creates no context on it."""
    return torch.cuda.is_available() and not _is_rocm_build()


def describe_torch() -> str:
    """What torch was built for, and whether it finds a GPU."""
    toolkit = f"ROCm {torch.version.hip}" if _is_rocm_build() else torch.version.cuda or "none"
    return f"{toolkit}, available: {torch.cuda.is_available()}"


def _is_rocm_build() -> bool:
    """Whether torch was built for AMD's GPUs, which it, too, calls ``cuda``."""
    return torch.version.hip is not None


@cache
def _warn_of_rocm() -> None:
    """Warn, once a process."""
    logger.warning("This torch is built for ROCm, which is not supported yet; running on the CPU.")
