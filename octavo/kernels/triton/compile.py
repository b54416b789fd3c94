"""Compiles many kernels in parallel, before the first of them runs, and says where they are kept."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime._async_compile import active_mode
from triton.runtime.jit import JITFunction

from octavo.kernels.dispatch import compile_together, keep_compiled
from octavo.kernels.triton.compiler_key import keep_compiler_key
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.platforms import runtime_of

_NUM_THREADS = 12


@keep_compiled.register("cuda")
def _keep_compiled(device: torch.device, root: str | None) -> None:
    """Below a folder of Octavo's own, which can be deleted as a whole; Triton's variable for it stays in force."""
    if root is None and os.environ.get("TRITON_CACHE_DIR"):
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = caches / "octavo" if root is None else Path(root)
    kernels = folder.expanduser() / "kernels"
    triton.knobs.cache.dir = str(kernels)
    keep_compiler_key(kernels)


@compile_together.register("cuda")
@contextmanager
def _compile_together(device: torch.device) -> Iterator[None]:
    """Most of a compilation runs without the GIL. Kernels found in Triton's cache on disk are only loaded."""
    if IS_INTERPRETED:
        yield
        return
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    with ThreadPoolExecutor(_NUM_THREADS, initializer=runtime_of(device).make_current) as pool, _Ahead(pool):
        JITFunction.run = compile_only
        try:
            yield
        finally:
            JITFunction.run = launch


class _Ahead(triton.AsyncCompileMode):
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

        def compile_and_load() -> Any:
            kernel = compile_fn()
            # The property builds the launcher and loads the kernel onto the device.
            _ = kernel.run
            return kernel

        future = super().submit(key, compile_and_load, finalize_fn, *cleanup_fn)
        # Register the future, so that later launches of this kernel find it and do not submit it again.
        finalize_fn(future)
        return future
