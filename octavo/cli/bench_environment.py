"""The environment of a benchmark result: enough to judge and reproduce it."""

import importlib.metadata
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import octavo
from octavo.cli.collect_env import gpus, machine

_PACKAGES = ("torch", "triton", "transformers", "numpy")


def describe_environment(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Date, commit, command, versions, processor and GPUs.

    Args:
        command: such as ``octavo bench engine``.
        arguments: its own; of absolute paths only the last part is kept, since results are shown to others.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join([*command.split(), *(_without_folders(argument) for argument in arguments)]),
        "versions": {"octavo": octavo.__version__, "python": platform.python_version(), **_versions()},
        "machine": machine(),
        "gpus": gpus(),
    }


def commit() -> str | None:
    """The commit of the checkout or source archive that contains this Octavo, with ``-dirty`` after changes.

    None for an installed one.
    """
    folder = Path(octavo.__file__).parent
    try:
        tracked = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=False
        )
        if tracked.returncode:
            return _commit_of_archive(folder.parent / ".git_archival.txt")
        return subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return _commit_of_archive(folder.parent / ".git_archival.txt")


def _commit_of_archive(file: Path) -> str | None:
    """What ``git archive`` wrote into a file for it."""
    try:
        found = re.search(r"^node: ([0-9a-f]{7,40})$", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _without_folders(argument: str) -> str:
    return Path(argument).name if argument.startswith("/") else argument
