"""Kernels in CUDA C++ are compiled wherever NVRTC is (the extra ``dev``), and run on GPUs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import FakeCompiler, FakeDriver

from octavo.kernels.cuda import attention as attention_module
from octavo.kernels.cuda import gemm as gemm_module
from octavo.kernels.cuda import grouped_gemm as grouped_module
from octavo.kernels.cuda import launch as launch_module
from octavo.kernels.cuda import library as library_module
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.cuda.nvrtc import CompilerMissingError, Nvrtc, find_compiler


@pytest.fixture(scope="session")
def nvrtc() -> Nvrtc:
    """The compiler."""
    try:
        return find_compiler()
    except CompilerMissingError as error:
        pytest.skip(f"{error}; make test installs it")


@pytest.fixture
def fake_compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def fake_driver(fake_compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A driver beside the compiler, whose current stream has the number 7."""
    driver = FakeDriver()
    monkeypatch.setattr(library_module, "find_driver", lambda: driver)
    monkeypatch.setattr(library_module, "find_compiler", lambda: fake_compiler)
    monkeypatch.setattr(launch_module, "current_stream", lambda device: 7)
    library_module._is_available.cache_clear()
    yield driver
    library_module._is_available.cache_clear()


@pytest.fixture
def library(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> KernelLibrary:
    """A library without kernels, in place of the process's."""
    own = KernelLibrary()
    for module in (launch_module, gemm_module, grouped_module, attention_module):
        monkeypatch.setattr(module, "library", own)
    return own


@pytest.fixture
def new_source(tmp_path: Path) -> Callable[..., Path]:
    """Writes a source in a folder of its own, with headers."""

    def write(text: str = "", name: str = "kernel.cu", **headers: str) -> Path:
        folder = tmp_path / f"source-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for header, content in headers.items():
            (folder / f"{header}.cuh").write_text(content)
        (folder / name).write_text(text)
        return folder / name

    return write
