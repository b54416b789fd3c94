"""CUDA's compatibility libraries are used on request only."""

import os
from pathlib import Path

import pytest

from octavo.cuda_compatibility import enable_cuda_compatibility

ON = {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.1").write_bytes(b"not a library")
    return folder


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_changes_unless_asked_for(value: str | None, folder: Path) -> None:
    environment = {"VLLM_CUDA_COMPATIBILITY_PATH": str(folder), "LD_LIBRARY_PATH": "/lib"}
    if value is not None:
        environment["VLLM_ENABLE_CUDA_COMPATIBILITY"] = value
    before = dict(environment)
    assert enable_cuda_compatibility(environment) is None
    assert environment == before


def test_the_given_folder_goes_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {**ON, "VLLM_CUDA_COMPATIBILITY_PATH": str(folder), "LD_LIBRARY_PATH": f"/lib{os.pathsep}{folder}"}
    assert enable_cuda_compatibility(environment) == folder
    assert environment["LD_LIBRARY_PATH"] == f"{folder}{os.pathsep}/lib"
    assert "cannot be loaded" in capsys.readouterr().err


def test_conda_goes_before_cuda(tmp_path: Path, folder: Path) -> None:
    environment = {**ON, "CONDA_PREFIX": str(tmp_path), "CUDA_HOME": str(tmp_path)}
    assert enable_cuda_compatibility(environment) == folder
    folder.rename(tmp_path / "cuda-compat")
    assert enable_cuda_compatibility(environment) == tmp_path / "cuda-compat"


def test_missing_libraries_are_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {**ON, "CUDA_HOME": str(tmp_path)}
    assert enable_cuda_compatibility(environment) is None
    assert "LD_LIBRARY_PATH" not in environment
    assert "not found" in capsys.readouterr().err
