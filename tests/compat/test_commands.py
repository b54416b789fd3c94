"""vLLM's commands by their module paths."""

import subprocess
import sys

import pytest
from compat.conftest import run_python

from octavo import __version__
from octavo.cli import serve
from octavo.compat import commands

COMMANDS = ["vllm.entrypoints.openai.api_server", "vllm.entrypoints.openai.run_batch", "vllm.entrypoints.cli.main"]


def test_the_server_takes_its_model_as_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(serve, "run", lambda arguments: seen.append(list(arguments)) or 0)
    monkeypatch.setattr(sys, "argv", ["api_server", "--model", "m", "--port", "0"])
    assert commands.serve() == 0
    assert seen == [["--model", "m", "--port", "0"]]


@pytest.mark.parametrize("module", COMMANDS)
def test_modules_run_as_commands(module: str) -> None:
    help_text = run_python("-m", "octavo.compat", "-m", module, "--help")
    assert help_text.startswith(("usage: octavo serve MODEL", "usage: octavo run-batch", "usage: octavo COMMAND"))


def test_subcommands_are_octavos() -> None:
    assert run_python("-m", "octavo.compat", "-m", "vllm.entrypoints.cli.main", "--version").strip() == __version__


@pytest.mark.long
def test_a_wrong_flag_ends_with_its_status() -> None:
    command = [sys.executable, "-m", "octavo.compat", "-m", COMMANDS[0], "--model", "bundled:none", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr and "octavo: error:" in ended.stderr


def test_the_command_line_can_be_imported(mirror: None) -> None:
    from vllm.entrypoints.cli.main import main

    assert main is commands.main
