"""Runs scripts as a user of vLLM would, with the mirror in place."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_llama import write_model

Run = Callable[..., str]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run_script(tmp_path: Path) -> Run:
    """Runs a script with ``python -m octavo.compat`` and returns what it printed."""

    def run(text: str, *arguments: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(text)
        return run_python("-m", "octavo.compat", str(script), *arguments)

    return run


def run_python(*arguments: str) -> str:
    """Standard output of a Python process that has to succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
