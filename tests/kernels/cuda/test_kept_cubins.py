"""Device code is compiled once for each source, choice of constants, architecture and compiler."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeCompiler

from octavo.kernels.cuda.kernel import CudaKernel, cubin_of
from octavo.kernels.cuda.nvrtc import CompileError


def test_a_kernel_is_compiled_once(
    new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path
) -> None:
    kernel = CudaKernel(new_source("text"), "multiply", (("ROWS", 64), ("TYPE", "half")))
    first = cubin_of(kernel, fake_compiler, tmp_path / "kept")
    assert cubin_of(kernel, fake_compiler, tmp_path / "kept") == first
    assert fake_compiler.options == [("--gpu-architecture=sm_90a", "-DROWS=64", "-DTYPE=half")]
    (file,) = (tmp_path / "kept").iterdir()
    assert file.name.startswith("multiply-") and file.suffix == ".cubin"


def test_only_the_user_may_write_it(
    new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path
) -> None:
    cubin_of(CudaKernel(new_source(), "multiply"), fake_compiler, tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    assert not (file.stat().st_mode | file.parent.stat().st_mode) & 0o022


def test_what_a_kernel_is_made_of_decides(
    new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path
) -> None:
    source = new_source("text", header="one")
    kernel = CudaKernel(source, "multiply", (("ROWS", 64),))
    others = [
        replace(kernel, constants=(("ROWS", 32),)),
        replace(kernel, architecture="sm_100a"),
        replace(kernel, name="add"),
        replace(kernel, source=new_source("other text", header="one")),
        replace(kernel, source=new_source("text", header="another")),
        replace(kernel, source=new_source("text", name="other.cu", header="one")),
    ]
    for each in (kernel, *others):
        cubin_of(each, fake_compiler, tmp_path / "kept")
    newer = FakeCompiler()
    newer.version = 13, 1
    cubin_of(kernel, newer, tmp_path / "kept")
    assert len(fake_compiler.options) + len(newer.options) == len(others) + 2
    # Where a source lies does not matter, nor what its launches ask for.
    cubin_of(replace(kernel, source=new_source("text", header="one"), shared_bytes=1), fake_compiler, tmp_path / "kept")
    assert len(fake_compiler.options) == len(others) + 1


def test_a_folder_that_cannot_be_written_keeps_nothing(
    new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    kernel = CudaKernel(new_source(), "multiply")
    for folder in (tmp_path / "file" / "kept", None):
        assert cubin_of(kernel, fake_compiler, folder) == b"--gpu-architecture=sm_90a"


def test_what_cannot_be_written_whole_leaves_nothing(
    new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*names: str) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    cubin_of(CudaKernel(new_source(), "multiply"), fake_compiler, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_an_error_is_not_kept(new_source: Callable[..., Path], fake_compiler: FakeCompiler, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="it has one"):
            cubin_of(CudaKernel(new_source("error"), "multiply"), fake_compiler, tmp_path / "kept")
    assert len(fake_compiler.options) == 2
