"""Reads settings from YAML, TOML or JSON files."""

import argparse
import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import ConfigError


class ConfigReader(Protocol):
    """Reads a setting's value from text."""

    def read(self, text: str) -> Any:
        """Parse ``text``."""


def read_config_file(path: Path, readers: Mapping[str, ConfigReader]) -> dict[str, Any]:
    """Settings by name from a YAML, TOML or JSON file; hyphens and underscores are the same in names.

    Args:
        path: the suffix determines the format; YAML if it is unknown.
        readers: every setting that the file may hold; text values go through them, so that ``8k`` works.
    """
    values: dict[str, Any] = {}
    for key, value in _load(path).items():
        name = key.removeprefix("--").replace("-", "_")
        name = "model" if name == "model_tag" else name
        reader = readers.get(name)
        if reader is None:
            near = difflib.get_close_matches(name, readers, 1)
            hint = f" Did you mean {near[0].replace('_', '-')}?" if near else ""
            raise ConfigError(f"{path} has the setting {key!r}, which there is not.{hint}")
        values[name] = _read(path, key, value, reader)
    return values


def _read(path: Path, key: str, value: Any, reader: ConfigReader) -> Any:
    if not isinstance(value, str):
        return value
    try:
        read = reader.read(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"In {path}, {key} {error}.") from None
    return read


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the settings in {path}: {error}.") from None
    try:
        content = _parse(text, path.suffix.lower())
    except ValueError as error:
        raise ConfigError(f"Cannot parse the settings in {path}: {' '.join(str(error).split())}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold settings as names with values.")
    return {str(key): value for key, value in content.items()}


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("Settings in YAML need the package PyYAML; install it, or use TOML or JSON.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
