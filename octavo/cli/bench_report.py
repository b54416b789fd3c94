"""Shared by the benchmarks: flag checks and result files."""

import argparse
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.config import EngineConfig
from octavo.errors import ConfigError


def check_counts(namespace: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1.

    Raises:
        ConfigError: naming the flag.
    """
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
    """Write figures to a file, or add them as a line; nothing without a path.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(json.dumps(figures, indent=None if append else 2) + "\n")
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror}.") from None
