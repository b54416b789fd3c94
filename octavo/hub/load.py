"""Loads a model's configuration from any supported format.

All functions here raise:
    ModelNotFoundError: there is nothing at the path, or the hub has no such model.
    WeightsError: a GGUF file is truncated or corrupted.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.config.values import ModelImpl
from octavo.errors import UnsupportedModelError
from octavo.hub.config_file import parse_config
from octavo.hub.decoder_config import token_ids
from octavo.hub.gguf_config import gguf_generation_config, gguf_raw_config
from octavo.hub.json_file import read_json
from octavo.hub.model_config import ModelConfig
from octavo.hub.pooling_config import with_pooling
from octavo.hub.purpose import as_generative_config
from octavo.hub.source import ModelSource, find_files, resolve
from octavo.hub.stored_layers import stored_layers
from octavo.tokenization.gguf_file import GGUFFile

_MODELOPT, _LAYERS = "hf_quant_config.json", "quantized_layers"
_SIDECARS = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quantization_config.json": "auto-round",
    _MODELOPT: "modelopt",
}
"""Names of the files → the ``quant_method`` of those that name none."""
_CONFIG = "quantization_config"
_KEYS = (_CONFIG, "compression_config")
_METHOD = "quant_method"


def find_model(settings: EngineConfig) -> tuple[ModelSource, ModelConfig]:
    """The files and the configuration of the model named in the settings."""
    model = settings.model
    source = resolve(model.model, revision=model.revision, token=model.hf_token, cache_dir=settings.load.download_dir)
    config = load_model_config(source, model.hf_overrides, model.model_impl)
    return source, with_pooling(config, source, model, partial(tokenizer_path, settings, source))


def load_model_config(
    source: ModelSource, overrides: dict[str, Any] | None = None, model_impl: ModelImpl = "auto"
) -> ModelConfig:
    """The model's shape. Reads no weights, but the names of those in quantised checkpoints.

    Args:
        overrides: values that replace those of config.json.
        model_impl: who implements the model; see :class:`octavo.config.settings.ModelSettings`.
    """
    if source.kind == "gguf":
        if model_impl == "transformers":
            raise UnsupportedModelError("model_impl=transformers needs a model folder, not a GGUF file.")
        return parse_config(_apply_overrides(gguf_raw_config(GGUFFile.open(source.path)), overrides or {}))
    raw = with_sidecar(read_json(source.path / "config.json"), source.path)
    raw = _apply_overrides(raw, overrides or {})
    config = parse_config(as_generative_config(raw), model_impl)
    if config.quantization:
        config = dataclasses.replace(config, stored=stored_layers(source.path))
    more = token_ids(load_generation_config(source).get("eos_token_id"), config.vocab_size)
    return dataclasses.replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *more))))


def load_generation_config(source: ModelSource) -> dict[str, Any]:
    """Sampling defaults that come with the model; empty if there are none."""
    if source.kind == "gguf":
        return {**source.generation_config, **gguf_generation_config(GGUFFile.open(source.path))}
    path = source.path / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _apply_overrides(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Replace values, also where the file has the same quantity under another name that takes precedence."""
    raw = {**raw, **overrides}
    if "torch_dtype" in overrides and "dtype" not in overrides:
        raw["dtype"] = overrides["torch_dtype"]
    parameters = raw.get("rope_parameters")
    if "rope_theta" in overrides and "rope_parameters" not in overrides and isinstance(parameters, dict):
        theta = {"rope_theta": overrides["rope_theta"]}
        full = parameters.get("full_attention")
        raw["rope_parameters"] = parameters | ({"full_attention": full | theta} if isinstance(full, dict) else theta)
    return raw


def tokenizer_path(settings: EngineConfig, source: ModelSource) -> Path:
    """The location of the tokenizer's files: with the model, unless the settings name another place."""
    model = settings.model
    if model.tokenizer is None:
        return source.path
    return find_files(
        model.tokenizer, revision=model.tokenizer_revision, token=model.hf_token, cache_dir=settings.load.download_dir
    )


def with_sidecar(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json with the ``quantization_config`` of a file beside it, unless it has one of its own.

    Of ModelOpt's, the list of layers alone may be there.
    """
    parts = [part for part in (raw, raw.get("text_config")) if isinstance(part, dict)]
    if any(part.get(key) for part in parts for key in _KEYS):
        return _with_layers(raw, folder)
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


def _with_layers(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json with ModelOpt's list of layers from the file beside it, if it has none."""
    config, path = raw.get(_CONFIG), folder / _MODELOPT
    if not isinstance(config, dict):
        return raw
    is_mixed = str(config.get("quant_algo")).upper() == "MIXED_PRECISION"
    if not is_mixed or _LAYERS in config or not path.is_file():
        return raw
    own = read_json(path)
    own = own["quantization"] if isinstance(own.get("quantization"), dict) else own
    return raw | {_CONFIG: config | {_LAYERS: own.get(_LAYERS)}}
