"""Launches of kernels in CUDA C++, whose arguments are prepared once and then changed in place.

They follow the protocol of Triton's (:mod:`octavo.kernels.triton.launch`): a kernel that is launched with
``is_dependent`` waits (``griddepcontrol.wait``) before it reads or writes what its predecessor may, and lets its
successor start right behind that.
"""

import ctypes
from collections.abc import Sequence

import torch

from octavo.kernels.cuda.driver import launch_config
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.library import driver, library
from octavo.platforms import current_stream

Argument = ctypes.c_void_p | ctypes.c_int32 | ctypes.c_float | ctypes.Structure
"""A kernel's argument: its memory is read at each launch."""


class Launch:
    """A launch of one kernel, with fixed sizes.

    Args:
        grid: blocks; multiples of the cluster's.
        arguments: the kernel's, in their order and of their types.
        cluster: blocks of a cluster.
        is_dependent: whether the kernel may start while its predecessor runs.

    Attributes:
        arguments: addresses of the kernel's arguments; a caller may replace one by that of another argument.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        device: torch.device,
        grid: tuple[int, int, int],
        num_threads: int,
        arguments: Sequence[Argument],
        *,
        cluster: tuple[int, int, int] = (1, 1, 1),
        is_dependent: bool = True,
    ) -> None:
        self._kernel = kernel
        self._device = device
        self._config = launch_config(
            grid, num_threads, shared_bytes=kernel.shared_bytes, cluster=cluster, is_dependent=is_dependent
        )
        self._memory = arguments  # kept alive
        self.arguments = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._function: int | None = None

    def run(self) -> None:
        """Launch the kernel on torch's current stream; while kernels are compiled together, only compile it."""
        if library.compiles_only:
            library.submit(self._kernel, self._device)
            return
        if self._function is None:
            self._function = library.find(self._kernel, self._device)
        self._config.stream = current_stream(self._device)
        driver().launch(self._config, self._function, self.arguments)
