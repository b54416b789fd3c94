"""Launchers of kernels, which Triton up to 3.8 compiles from C: built sooner, and beside the kernels.

A launcher hands a kernel's arguments on to the driver. There is one for each signature, 25 for a model.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from triton.backends.nvidia import driver
from triton.runtime import build

_NUM_THREADS = 4
_build = build._build


def _build_quickly(
    name: str, source: str, folder: str, library_dirs: Any, include_dirs: Any, libraries: Any, flags: Any, *more: Any
) -> str:
    """Compile C as Triton does, without optimizations, in a third of the time."""
    return _build(name, source, folder, library_dirs, include_dirs, libraries, [*flags, "-O0"], *more)


build._build = _build_quickly

_make_launcher: Callable[..., str] | None = getattr(driver, "make_launcher", None)
"""The C of a launcher; None since Triton 3.9, which has one launcher for all kernels."""


class Launchers:
    """Builds launchers into Triton's cache while the kernels compile that need them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "launchers")
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def expect(self, signature: Mapping[str, Any], constants: Mapping[Any, Any]) -> None:
        """Build the launcher of a kernel that will come; both arguments as Triton's ``ASTSource`` takes them."""
        make = _make_launcher
        if make is None or str(signature) in self._locks:
            return
        lock = self.lock(signature)
        # That a kernel's descriptors are loaded by TMA is part of its launcher's C; which swizzle they have is not.
        descriptors = [object() for kind in signature.values() if str(kind).startswith("tensordesc")]

        def build_it() -> None:
            with lock, suppress(Exception):  # who needs the launcher reports what is wrong
                driver.compile_module_from_src(
                    src=make(constants, signature, descriptors),
                    name="__triton_launcher",
                    library_dirs=driver.library_dirs(),
                    include_dirs=driver.include_dirs,
                    libraries=driver.libraries,
                )

        self._pool.submit(build_it)

    def lock(self, signature: Mapping[str, Any]) -> threading.Lock:
        """Held by whoever builds or loads a signature's launcher."""
        return self._locks[str(signature)]

    def close(self) -> None:
        """Build no others."""
        self._pool.shutdown(cancel_futures=True)
