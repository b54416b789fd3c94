"""Kernels in CUDA C++ on their devices: compiled and loaded when they are first launched, or together beforehand."""

import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from octavo.kernels.cuda.driver import Driver, DriverError, find_driver
from octavo.kernels.cuda.kernel import CudaKernel, cubin_of
from octavo.kernels.cuda.nvrtc import CompileError, CompilerMissingError, find_compiler

logger = logging.getLogger(__name__)

_NUM_THREADS = 8
"""That compile together: as many as a model has choices of constants, or nearly."""


@dataclass
class KernelLibrary:
    """Kernels of this process.

    Attributes:
        folder: where device code is kept from one start to the next; None for nowhere.
        functions: addresses that the driver knows, of kernels that are loaded.
    """

    folder: Path | None = None
    functions: dict[tuple[CudaKernel, torch.device], int] = field(default_factory=dict)
    _pool: Executor | None = None
    _ahead: dict[tuple[CudaKernel, torch.device], Future[int]] = field(default_factory=dict)
    _launched: set[Future[int]] | None = None
    _failed: set[Path] = field(default_factory=set)

    @property
    def compiles_only(self) -> bool:
        """Whether kernels are compiled, not run."""
        return self._launched is not None

    def find(self, kernel: CudaKernel, device: torch.device) -> int:
        """The function to launch.

        Raises:
            CompileError, DriverError: it does not compile, or the device does not take it.
        """
        key = kernel, device
        if key not in self.functions:
            self._settle(kernel.source)
        if key not in self.functions:
            self.functions[key] = _load(kernel, self.folder)
        return self.functions[key]

    def submit(self, kernel: CudaKernel, device: torch.device) -> None:
        """Let a thread compile and load a kernel, in the context of :meth:`compile_only`."""
        assert self._pool is not None and self._launched is not None, "kernels are compiled ahead"
        key = kernel, device
        if key in self.functions:
            return
        if key not in self._ahead:
            self._ahead[key] = self._pool.submit(_load, kernel, self.folder)
        self._launched.add(self._ahead[key])

    @contextmanager
    def compile_ahead(self, make_current: Callable[[], None]) -> Iterator[None]:
        """A context for :meth:`compile_only`, on exit from which all kernels are loaded.

        A kernel that does not compile is reported, and those of its source are not used from then on.

        Args:
            make_current: makes the device that of the calling thread.
        """
        with ThreadPoolExecutor(_NUM_THREADS, initializer=make_current) as pool:
            self._pool = pool
            try:
                yield
                for source in {kernel.source for kernel, _ in self._ahead}:
                    self._settle(source)
            finally:
                self._pool = None
                self._ahead.clear()

    @contextmanager
    def compile_only(self) -> Iterator[set[Future[int]]]:
        """A context in which launches only have their kernels compiled and loaded, several at a time: those to come."""
        self._launched = set()
        try:
            yield self._launched
        finally:
            self._launched = None

    def has(self, source: Path) -> bool:
        """Whether kernels of a source can be used: there are compiler and driver, and none has failed to compile.

        Where kernels are to run, it waits for those of the source that are compiled ahead.
        """
        if not self.compiles_only:
            self._settle(source)
        return source not in self._failed and _is_available()

    def _settle(self, source: Path) -> None:
        """Wait for the kernels of a source."""
        for key in [key for key in self._ahead if key[0].source == source]:
            try:
                self.functions[key] = self._ahead.pop(key).result()
            except (CompileError, DriverError) as error:
                self._give_up(source, error)

    def _give_up(self, source: Path, error: Exception) -> None:
        if source not in self._failed:
            self._failed.add(source)
            logger.warning("Kernels of %s do not compile; slower ones are used. %s", source.name, error)


library = KernelLibrary()
"""That of this process."""


def _load(kernel: CudaKernel, folder: Path | None) -> int:
    cubin = cubin_of(kernel, find_compiler(), folder)
    return driver().load(cubin, kernel.name, shared_bytes=kernel.shared_bytes, cluster_size=kernel.cluster_size)


def driver() -> Driver:
    """The driver, which is there: kernels are launched on devices only."""
    found = find_driver()
    assert found is not None, "a kernel's device has a driver"
    return found


@functools.cache
def _is_available() -> bool:
    """Whether kernels can be compiled and launched; warns, once, if only the compiler is missing."""
    if find_driver() is None:
        return False
    try:
        find_compiler()
    except CompilerMissingError as error:
        logger.warning("%s; slower kernels are used for some GEMMs and attention.", error)
        return False
    return True
