"""Kernels in CUDA C++ are compiled wherever NVRTC is (the extra ``dev``), and run on GPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_compiler import FakeCompiler

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
