"""A kernel in CUDA C++: its source and constants, and its device code, which is compiled once and kept in a folder."""

import functools
import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.kernels.cuda.nvrtc import Compiled, Nvrtc

_FORMAT = "1"
"""Of a key: what is kept under those of another one is never read."""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A function of one source, compiled for one choice of constants and one architecture.

    Attributes:
        source: the ``.cu`` file; it may include the ``.cuh`` files of its folder, and no other files.
        name: of the function, which is ``extern "C"``.
        constants: macros by name.
        shared_bytes: dynamic shared memory of a block.
        cluster_size: blocks of a cluster.
        architecture: that of the device, such as ``sm_90a``.
    """

    source: Path
    name: str
    constants: tuple[tuple[str, int | str], ...] = ()
    shared_bytes: int = 0
    cluster_size: int = 1
    architecture: str = "sm_90a"

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        return f"--gpu-architecture={self.architecture}", *(f"-D{name}={value}" for name, value in self.constants)


def compile_kernel(kernel: CudaKernel, compiler: Nvrtc) -> Compiled:
    """Compile a kernel.

    Raises:
        CompileError: the source does not compile.
    """
    source, headers = _texts(kernel.source)
    return compiler.compile(kernel.source.name, source, headers, kernel.options)


def cubin_of(kernel: CudaKernel, compiler: Nvrtc, folder: Path | None) -> bytes:
    """Device code of a kernel, as it was kept or compiled now and kept.

    Args:
        folder: where device code is kept; None for nowhere.

    Raises:
        CompileError: the source does not compile.
    """
    if folder is None:
        return compile_kernel(kernel, compiler).cubin
    source, headers = _texts(kernel.source)
    key = repr((_FORMAT, compiler.version, kernel.source.name, source, sorted(headers.items()), kernel.options))
    kept = folder / f"{kernel.name}-{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    with suppress(OSError):
        return kept.read_bytes()
    cubin = compile_kernel(kernel, compiler).cubin
    with suppress(OSError):  # a folder that cannot be written costs time at later starts
        _keep(cubin, kept)
    return cubin


def _keep(cubin: bytes, kept: Path) -> None:
    """Write a file that exists only whole, whoever else writes it at the same time, and is its user's alone."""
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, unfinished = tempfile.mkstemp(dir=kept.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(cubin)
        os.replace(unfinished, kept)
    except OSError:
        os.unlink(unfinished)
        raise


@functools.cache
def _texts(source: Path) -> tuple[str, dict[str, str]]:
    """A source, and the headers in its folder by name."""
    return source.read_text(), {header.name: header.read_text() for header in source.parent.glob("*.cuh")}
