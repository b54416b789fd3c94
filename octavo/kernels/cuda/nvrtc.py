"""NVRTC, CUDA's compiler as a library: a C++ source and its headers in, a cubin for one architecture out.

torch's builds for CUDA depend on ``nvidia-cuda-nvrtc``, so neither a toolkit nor a host compiler is needed.
"""

import ctypes
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from octavo.platforms import cuda_version

_MAJORS = (13, 12)
"""Versions of CUDA whose library is looked for."""
_OLDEST = (12, 3)
"""The first version that knows all instructions that kernels use."""

_OPTIONS = ("--std=c++17", "--ptxas-options=-v")
"""Of every compilation; the assembler's log says how many registers a kernel has and what spills."""


class CompilerMissingError(Exception):
    """There is no NVRTC of a version that can be used; the message is a sentence."""


class CompileError(Exception):
    """A source does not compile; the message is the compiler's log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compilation returns: device code, and what compiler and assembler said of it."""

    cubin: bytes
    log: str


class Nvrtc:
    """The library, whose calls release the interpreter's lock.

    Args:
        library: of NVRTC.

    Raises:
        CompilerMissingError: its version is too old.

    Attributes:
        version: major and minor, those of the CUDA toolkit that it is part of.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = major.value, minor.value
        if self.version < _OLDEST:
            found, needed = (".".join(map(str, version)) for version in (self.version, _OLDEST))
            raise CompilerMissingError(f"CUDA's runtime compiler NVRTC is of version {found}, {needed} is needed")

    def compile(self, name: str, source: str, headers: Mapping[str, str], options: Sequence[str]) -> Compiled:
        """Compile one source.

        Args:
            name: of the source in messages.
            headers: by the names that ``#include`` has.
            options: such as ``--gpu-architecture=sm_90a`` and ``-DNAME=VALUE``, beside those of every compilation.

        Raises:
            CompileError: it does not compile.
        """
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program),
                source.encode(),
                name.encode(),
                len(headers),
                _strings(headers.values()),
                _strings(headers),
            )
        )
        try:
            words = (*_OPTIONS, *options)
            failed = self._library.nvrtcCompileProgram(program, len(words), _strings(words))
            log = self._result("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                raise CompileError(log or self._library.nvrtcGetErrorString(failed).decode())
            return Compiled(self._result("CUBIN", program), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _result(self, kind: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._library[f"nvrtcGet{kind}Size"](program, ctypes.byref(size)))
        memory = ctypes.create_string_buffer(size.value)
        self._check(self._library[f"nvrtcGet{kind}"](program, memory))
        return memory.raw

    def _check(self, error: int) -> None:
        if error:
            raise CompileError(self._library.nvrtcGetErrorString(error).decode())


@functools.cache
def find_compiler() -> Nvrtc:
    """NVRTC as torch's packages bring it, else the system's; that of torch's CUDA version first.

    Raises:
        CompilerMissingError: there is none that can be used.
    """
    own = cuda_version()[0]
    for major in sorted(_MAJORS, key=lambda major: major != own):
        for place in (*_packaged(major), f"libnvrtc.so.{major}"):
            with suppress(OSError):
                return Nvrtc(ctypes.CDLL(str(place)))
    raise CompilerMissingError(
        "CUDA's runtime compiler NVRTC is missing (libnvrtc.so, in the package nvidia-cuda-nvrtc)"
    )


def _packaged(major: int) -> Iterator[Path]:
    """The library in folders of NVIDIA's Python packages; loads what it opens by name."""
    packages = find_spec("nvidia")
    for place in (packages and packages.submodule_search_locations) or ():
        for library in sorted(Path(place).glob(f"*/lib/libnvrtc.so.{major}")):
            for builtins in library.parent.glob(f"libnvrtc-builtins.so.{major}.*"):
                with suppress(OSError):
                    ctypes.CDLL(str(builtins))
            yield library


def _strings(words: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [word.encode() for word in words]
    return (ctypes.c_char_p * len(encoded))(*encoded)
