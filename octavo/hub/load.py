"""A model's configuration files, whatever form they come in."""

from typing import Any

from octavo.hub.config_file import parse_config
from octavo.hub.gguf_config import gguf_raw_config
from octavo.hub.json_file import read_json
from octavo.hub.model_config import ModelConfig
from octavo.hub.source import ModelSource
from octavo.tokenization.gguf_file import GGUFFile


def load_model_config(source: ModelSource, overrides: dict[str, Any] | None = None) -> ModelConfig:
    """The model's shape.

    Args:
        overrides: values that replace those of config.json.

    Raises:
        UnsupportedModelError: the configuration is missing, broken, or says what cannot be.
        WeightsError: a GGUF file is truncated or corrupted.
    """
    if source.kind == "gguf":
        raw = gguf_raw_config(GGUFFile.open(source.path))
    else:
        raw = read_json(source.path / "config.json")
    return parse_config({**raw, **(overrides or {})})


def load_generation_config(source: ModelSource) -> dict[str, Any]:
    """Sampling defaults that come with the model; empty if none do.

    Raises:
        UnsupportedModelError: the file is there but no JSON object.
    """
    path = source.path / "generation_config.json"
    if source.kind == "gguf" or not path.is_file():
        return {}
    return read_json(path)
