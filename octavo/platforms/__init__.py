"""Platforms: what each kind of device can do, and how code uses a device.

This package alone asks which device there is. ``platform.py`` and ``runtime.py`` are the interfaces, ``cpu.py`` and
``cuda.py`` implement them, ``select.py`` chooses; a new kind of device adds a file and its lines there.
"""

from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.cuda import (
    CudaPlatform,
    compute_capability,
    cuda_version,
    current_stream,
    device_name,
    num_devices,
    num_multiprocessors,
)
from octavo.platforms.imagined import GPU_MODELS, ImaginedGpu
from octavo.platforms.placement import Placement, place_threads
from octavo.platforms.platform import DeviceMemory, Platform, compute_type
from octavo.platforms.runtime import DeviceRuntime, Event, Graph, GraphCapture
from octavo.platforms.select import (
    begin_device,
    describe_torch,
    has_cuda,
    platform_type,
    runtime_of,
    select_platform,
)
from octavo.platforms.topology import available_cores, this_process
