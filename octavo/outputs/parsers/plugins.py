"""The operator's Python files that register parsers."""

import importlib.util
from functools import cache
from pathlib import Path

from octavo.errors import ConfigError


@cache
def run_plugin(path: str) -> None:
    """Run such a file, once.

    Raises:
        ConfigError: there is no such file, or it fails.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"There is no file {path} to load parsers from.")
    spec = importlib.util.spec_from_file_location(f"octavo_parser_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"The plug-in {path} is no Python file; its name must end in .py.")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"The plug-in {path} failed: {type(error).__name__}: {error}") from error
