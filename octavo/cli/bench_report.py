"""Shared by the benchmarks: flag checks and result files."""

import argparse
import importlib.metadata
import json
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import octavo
from octavo import __version__
from octavo.cli.collect_env import gpus, machine
from octavo.config import EngineConfig
from octavo.errors import ConfigError

_PACKAGES = ("torch", "triton", "transformers", "numpy")


def check_counts(namespace: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        if getattr(namespace, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1.")


def describe_run(namespace: argparse.Namespace, config: EngineConfig) -> dict[str, Any]:
    """When, where and with what a benchmark ran: the flags that are no settings, and the model."""
    options = {
        name: value
        for name, value in vars(namespace).items()
        if not name.startswith("setting:") and name not in ("config", "model_tag", "output_json")
    }
    return {"model": config.model.model, "options": options, **describe_machine()}


def describe_machine() -> dict[str, Any]:
    """Time, machine and version."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "octavo_version": __version__,
    }


def write_json(path: Path | None, figures: Mapping[str, Any], *, append: bool = False) -> None:
    """Write figures to a file, or add them as a line; nothing without a path. Raises as :func:`write_text` does."""
    if path is not None:
        write_text(path, json.dumps(figures, indent=None if append else 2) + "\n", append=append)


def write_text(path: Path, text: str, *, append: bool = False) -> None:
    """Write or extend a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror}.") from None


def describe_environment(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Date, commit, command, versions, processor and GPUs.

    Args:
        command: such as ``octavo bench engine``.
        arguments: its own; of absolute paths only the last part is kept, since results are shown to others.
    """
    names = (Path(argument).name if argument.startswith("/") else argument for argument in arguments)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join([*command.split(), *names]),
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
