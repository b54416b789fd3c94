"""Compiles many kernels at a time, before the first of them runs, and says where they are kept."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime._async_compile import FutureKernel, active_mode
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from octavo.kernels.cuda.library import library
from octavo.kernels.dispatch import CompileOnly, ReadyKernels, compile_together, keep_compiled
from octavo.kernels.triton.compile_workers import CompileWorkers, workers_for
from octavo.kernels.triton.compiler_key import keep_kernels
from octavo.kernels.triton.kept_kernels import kernel_folder
from octavo.kernels.triton.kernel_description import describe
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.launchers import Launchers
from octavo.platforms import runtime_of

_NUM_THREADS = 64
"""As many as a model has kernels, or nearly: so all of them wait at the same time, and the longest begin first."""

_LONG = frozenset({"_hopper_kernel", "filter_kernel", "paged_decode_kernel", "_prefill_kernel"})
"""Kernels that compile for seconds. If one begins late, the start waits for it alone."""


@dataclass
class _Compiling:
    """What this process knows of compiling.

    Attributes:
        folder: of kept kernels; None for that of Triton's variable.
        driver: loads Triton's driver; None if that has not begun.
    """

    folder: Path | None = None
    driver: threading.Thread | None = None


_compiling = _Compiling()


@keep_compiled.register("cuda")
def _keep_compiled(device: torch.device, root: str | None) -> None:
    """Below a folder of Octavo's own, which can be deleted as a whole; Triton's variable for it stays in force."""
    _compiling.folder = kernel_folder(root)
    if _compiling.folder is not None:
        keep_kernels(_compiling.folder)
    library.folder = Path(triton.knobs.cache.dir) / "cuda"
    if _compiling.driver is None and not IS_INTERPRETED:
        _compiling.driver = threading.Thread(target=_load_driver, name="triton-driver", daemon=True)
        _compiling.driver.start()


def _load_driver() -> None:
    """Triton 3.6 compiles it from C at the first start, which takes as long as loading a small model."""
    with suppress(Exception):  # the first launch reports what is wrong
        _ = triton.runtime.driver.active


@compile_together.register("cuda")
@contextmanager
def _compile_together(device: torch.device) -> Iterator[CompileOnly]:
    """Kernels found in Triton's cache on disk are only loaded."""
    if IS_INTERPRETED:
        yield lambda: nullcontext(ReadyKernels())
        return
    if _compiling.driver is not None:
        _compiling.driver.join()
    compile_kernel = JITFunction._do_compile

    def describe_first(
        self: Any, key: Any, signature: Any, device: int, constants: Any, options: Any, attributes: Any, warmup: bool
    ) -> Any:
        target = self.device_caches[device][2]
        description = describe(self, signature, constants, attributes, target, options.__dict__)
        mode.next = _Submitted(self.__name__, description, signature, constants)
        return compile_kernel(self, key, signature, device, constants, options, attributes, warmup)

    with (
        closing(workers_for(_compiling.folder)) as workers,
        closing(Launchers()) as launchers,
        ThreadPoolExecutor(_NUM_THREADS, initializer=runtime_of(device).make_current) as pool,
        _Ahead(pool, workers, launchers) as mode,
        library.compile_ahead(runtime_of(device).make_current),
    ):
        JITFunction._do_compile = describe_first
        try:
            yield _compile_only
        finally:
            JITFunction._do_compile = compile_kernel


@contextmanager
def _compile_only() -> Iterator["_Launched"]:
    """Launches return at once."""
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        launched.add(kernel)
        return kernel

    with library.compile_only() as loading:
        launched = _Launched(loading)
        JITFunction.run = compile_only
        try:
            yield launched
        finally:
            JITFunction.run = launch


class _Launched:
    """See :class:`octavo.kernels.dispatch.LaunchedKernels`.

    Args:
        loading: kernels in CUDA C++, to which a context adds.
    """

    def __init__(self, loading: set[Future[int]]) -> None:
        self._unfinished: set[FutureKernel] = set()
        self._loading = loading

    def add(self, kernel: Any) -> None:
        """Add a kernel as Triton returns it: to come, or compiled."""
        if isinstance(kernel, FutureKernel):
            self._unfinished.add(kernel)

    def are_ready(self) -> bool:
        self._unfinished = {kernel for kernel in self._unfinished if kernel.kernel is None and not kernel.future.done()}
        return not self._unfinished and all(kernel.done() for kernel in self._loading)


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A kernel as ``JITFunction`` has it.

    Attributes:
        description: see :func:`describe`; None keeps it in this process.
    """

    name: str
    description: bytes | None
    signature: dict[str, Any]
    constants: dict[Any, Any]


class _Ahead(triton.AsyncCompileMode):
    """Compiles and loads what launches submit.

    Attributes:
        next: the kernel that is submitted next.
    """

    def __init__(self, pool: ThreadPoolExecutor, workers: CompileWorkers, launchers: Launchers) -> None:
        super().__init__(pool)
        self._workers = workers
        self._launchers = launchers
        self.next = _Submitted("", None, {}, {})

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            # If a kernel fails to compile, Triton leaves its mode active and rejects the next attempt, too.
            active_mode.set(None)

    def submit(
        self, key: str, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None], *cleanup_fn: Any
    ) -> Any:
        """``cleanup_fn`` is an argument since Triton 3.9."""
        submitted = self.next

        def compile_and_load() -> Any:
            if submitted.description is None or _is_kept(key, submitted.name):
                kernel = compile_fn()
            else:
                self._launchers.expect(submitted.signature, submitted.constants)
                is_long = submitted.name in _LONG
                kernel = self._workers.compile(submitted.description, compile_fn, is_long=is_long)
            # The property makes the launcher and loads the kernel onto the device.
            with self._launchers.lock(submitted.signature):
                _ = kernel.run
            return kernel

        future = super().submit(key, compile_and_load, finalize_fn, *cleanup_fn)
        # Register the future, so that later launches of this kernel find it and do not submit it again.
        finalize_fn(future)
        return future


def _is_kept(key: str, name: str) -> bool:
    """Whether Triton's cache on disk has a kernel."""
    return bool(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(f"{name[:150]}.json"))
