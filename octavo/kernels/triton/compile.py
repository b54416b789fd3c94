"""Compiles many kernels at a time, before the first of them runs, and says where they are kept."""

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime._async_compile import active_mode
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from octavo.kernels.cuda.library import library
from octavo.kernels.dispatch import compile_together, expect_to_compile, keep_compiled
from octavo.kernels.triton.compile_workers import CompileWorkers
from octavo.kernels.triton.compiler_key import has_key, keep_kernels
from octavo.kernels.triton.kernel_description import describe
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.platforms import num_devices, runtime_of

_NUM_THREADS = 32


@dataclass
class _Compiling:
    """What this process knows of compiling.

    Attributes:
        folder: of kept kernels; None for that of Triton's variable.
        workers: started before they are needed.
    """

    folder: Path | None = None
    workers: CompileWorkers | None = None


_compiling = _Compiling()


@keep_compiled.register("cuda")
def _keep_compiled(device: torch.device, root: str | None) -> None:
    """Below a folder of Octavo's own, which can be deleted as a whole; Triton's variable for it stays in force."""
    tritons_own = os.environ.get("TRITON_CACHE_DIR")
    if root is None and tritons_own:
        library.folder = Path(tritons_own) / "cuda"
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = caches / "octavo" if root is None else Path(root)
    _compiling.folder = folder.expanduser() / "kernels"
    keep_kernels(_compiling.folder)
    library.folder = _compiling.folder / "cuda"


@expect_to_compile.register("cuda")
def _expect_to_compile(device: torch.device) -> None:
    """Where kernels were kept before, most may be there; then a kernel that is missing starts the processes."""
    folder = _compiling.folder
    if folder is not None and not has_key(folder) and _compiling.workers is None and not IS_INTERPRETED:
        _compiling.workers = CompileWorkers(folder, num_devices())
        _compiling.workers.start()


@compile_together.register("cuda")
@contextmanager
def _compile_together(device: torch.device) -> Iterator[None]:
    """Kernels found in Triton's cache on disk are only loaded."""
    if IS_INTERPRETED:
        yield
        return
    workers = _compiling.workers or CompileWorkers(_compiling.folder, num_devices())
    _compiling.workers = None
    launch, compile_kernel = JITFunction.run, JITFunction._do_compile

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    def describe_first(
        self: Any, key: Any, signature: Any, device: int, constants: Any, options: Any, attributes: Any, warmup: bool
    ) -> Any:
        target = self.device_caches[device][2]
        mode.name = self.__name__
        mode.description = describe(self, signature, constants, attributes, target, options.__dict__)
        return compile_kernel(self, key, signature, device, constants, options, attributes, warmup)

    with (
        closing(workers),
        ThreadPoolExecutor(_NUM_THREADS, initializer=runtime_of(device).make_current) as pool,
        _Ahead(pool, workers) as mode,
        library.compile_ahead(runtime_of(device).make_current),
    ):
        JITFunction.run, JITFunction._do_compile = compile_only, describe_first
        try:
            yield
        finally:
            JITFunction.run, JITFunction._do_compile = launch, compile_kernel


class _Ahead(triton.AsyncCompileMode):
    """Compiles and loads what launches submit.

    Attributes:
        name, description: of the kernel that is submitted next; a description of None keeps it in this process.
    """

    def __init__(self, pool: ThreadPoolExecutor, workers: CompileWorkers) -> None:
        super().__init__(pool)
        self._workers = workers
        self._launchers: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.name = ""
        self.description: bytes | None = None

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
        name, description = self.name, self.description

        def compile_and_load() -> Any:
            if description is None or _is_kept(key, name):
                kernel = compile_fn()
            else:
                kernel = self._workers.compile(description, compile_fn)
            # The property builds the launcher and loads the kernel onto the device. Triton 3.6 compiles a launcher for
            # each signature, from C.
            with self._launchers[str(kernel.src.signature)]:
                _ = kernel.run
            return kernel

        future = super().submit(key, compile_and_load, finalize_fn, *cleanup_fn)
        # Register the future, so that later launches of this kernel find it and do not submit it again.
        finalize_fn(future)
        return future


def _is_kept(key: str, name: str) -> bool:
    """Whether Triton's cache on disk has a kernel."""
    return bool(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(f"{name[:150]}.json"))
