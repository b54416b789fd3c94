"""Configurations of quantised weights that older checkpoints have in a file beside config.json."""

from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.json_file import read_json

_SIDECARS = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Names of the files → the ``quant_method`` of those that name none."""
_CONFIG = "quantization_config"
_KEYS = (_CONFIG, "compression_config")
_METHOD = "quant_method"


def with_sidecar(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json with the ``quantization_config`` of a file beside it, unless it has one of its own.

    Args:
        raw: what config.json holds.
        folder: its folder.

    Raises:
        UnsupportedModelError: the file is broken, or there are several.
    """
    parts = [part for part in (raw, raw.get("text_config")) if isinstance(part, dict)]
    if any(part.get(key) for part in parts for key in _KEYS):
        return raw
    found = [name for name in _SIDECARS if (folder / name).is_file()]
    if not found:
        return raw
    if len(found) > 1:
        raise UnsupportedModelError(
            f"{folder} has {' and '.join(found)}, but no quantization_config in config.json that says which of them "
            "describes the weights."
        )
    own = read_json(folder / found[0])
    return raw | {_CONFIG: {**own, _METHOD: own.get(_METHOD) or _SIDECARS[found[0]]}}
