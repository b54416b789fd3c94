"""Runs scripts as a user of vLLM would, with the mirror in place."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_llama import write_model

Run = Callable[..., str]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``import vllm`` finds the mirror while a test runs, and nothing of it stays behind."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    from octavo.compat.mirror import install

    install()
    yield
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        del sys.modules[name]


@pytest.fixture
def run_script(
    mirror: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs a script here, as ``__main__``, and returns what it printed."""

    def run(text: str, *arguments: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(text)
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    yield run


def run_python(*arguments: str) -> str:
    """Standard output of a Python process that has to succeed, without a complaint of Python's own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    for complaint in ("Traceback", "Exception ignored", "never awaited"):
        assert complaint not in ended.stderr, ended.stderr
    return ended.stdout
