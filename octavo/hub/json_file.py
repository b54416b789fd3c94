"""Small JSON files of a model, read with limits."""

import json
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedModelError

_MAX_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = _read(path)
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object.")
    return value


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """The list of objects in a JSON file; raises as :func:`read_json`."""
    value = _read(path)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnsupportedModelError(f"{path} does not hold a JSON list of objects.")
    return value


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UnsupportedModelError(f"{path} is larger than {_MAX_BYTES >> 20} MiB.")
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError:
        raise UnsupportedModelError(f"{path} is missing.") from None
    except RecursionError:
        raise UnsupportedModelError(f"{path} is nested too deeply.") from None
    except ValueError as error:
        if isinstance(error, UnsupportedModelError):
            raise
        raise UnsupportedModelError(f"{path} is not valid JSON: {error}.") from None
    except OSError as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error.strerror or error}.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:60]!r} appears twice")
    return value
