"""NVRTC is found or its absence explained, and compiles a source with its headers."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from share_tile import share_tile_kernel

from octavo.kernels.cuda import nvrtc as nvrtc_module
from octavo.kernels.cuda.kernel import cubin_of
from octavo.kernels.cuda.nvrtc import CompileError, CompilerMissingError, Nvrtc, find_compiler


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    find_compiler.cache_clear()


def test_a_kernel_compiles_to_device_code(nvrtc: Nvrtc) -> None:
    assert cubin_of(share_tile_kernel(2), nvrtc, None).startswith(b"\x7fELF")


def test_the_log_tells_of_registers_and_spills(nvrtc: Nvrtc) -> None:
    source = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = SIZE; }'
    compiled = nvrtc.compile("fill.cu", source, {}, ["--gpu-architecture=sm_90a", "-DSIZE=3"])
    assert "0 bytes spill stores" in compiled.log
    assert "registers" in compiled.log


def test_an_error_names_file_and_line(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"kernel\.cu\(2\): error"):
        nvrtc.compile("kernel.cu", "\nint x = y;\n", {}, ["--gpu-architecture=sm_90a"])


class _Library:
    """A library of a version."""

    def __init__(self, major: int, minor: int) -> None:
        self._version = major, minor
        self.nvrtcGetErrorString = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(lambda error: b"failed")

    def nvrtcVersion(self, *places: Any) -> int:  # noqa: N802
        for place, number in zip(places, self._version, strict=True):
            place._obj.value = number
        return 0


def opening(monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Any]) -> list[str]:
    """Let these libraries be all there are; the names that are opened."""
    opened: list[str] = []

    def open_library(name: str) -> Any:
        opened.append(name)
        if name not in libraries:
            raise OSError(name)
        return libraries[name]

    monkeypatch.setattr(nvrtc_module.ctypes, "CDLL", open_library)
    find_compiler.cache_clear()
    return opened


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    opening(monkeypatch, {})
    monkeypatch.setattr(nvrtc_module, "find_spec", lambda name: None)
    with pytest.raises(CompilerMissingError, match="nvidia-cuda-nvrtc"):
        find_compiler()


def test_a_compiler_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    opening(monkeypatch, {"libnvrtc.so.12": _Library(12, 1)})
    monkeypatch.setattr(nvrtc_module, "find_spec", lambda name: None)
    with pytest.raises(CompilerMissingError, match=r"version 12\.1, 12\.3 is needed"):
        find_compiler()


@pytest.mark.parametrize(("own", "found"), [(12, (12, 9)), (13, (13, 1)), (0, (13, 1))])
def test_the_compiler_of_torchs_version_comes_first(
    own: int, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening(monkeypatch, {"libnvrtc.so.12": _Library(12, 9), "libnvrtc.so.13": _Library(13, 1)})
    monkeypatch.setattr(nvrtc_module, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc_module, "cuda_version", lambda: (own, 0))
    assert find_compiler().version == found


def test_packaged_libraries_come_before_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    library, builtins = folder / "libnvrtc.so.13", folder / "libnvrtc-builtins.so.13.0"
    library.touch()
    builtins.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(nvrtc_module, "cuda_version", lambda: (13, 0))
    systems = {"libnvrtc.so.13": _Library(13, 1)}
    opened = opening(monkeypatch, {str(library): _Library(13, 0), str(builtins): None, **systems})
    assert find_compiler().version[0] == 13
    assert "libnvrtc.so.13" not in opened
    # The library itself opens this one by name, and finds it only if it is loaded.
    assert opened.index(str(builtins)) < opened.index(str(library))
