"""Loads a model's configuration from any supported format."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.config.settings import ModelImpl
from octavo.errors import UnsupportedModelError
from octavo.hub.config_file import parse_config
from octavo.hub.decoder_config import token_ids
from octavo.hub.gguf_config import gguf_generation_config, gguf_raw_config
from octavo.hub.json_file import read_json
from octavo.hub.model_config import ModelConfig
from octavo.hub.pooling_config import with_pooling
from octavo.hub.purpose import as_generative_config
from octavo.hub.sidecar import with_sidecar
from octavo.hub.source import ModelSource, find_files, resolve
from octavo.tokenization.gguf_file import GGUFFile


def find_model(settings: EngineConfig) -> tuple[ModelSource, ModelConfig]:
    """The files and the configuration of the model named in the settings.

    Raises:
        OctavoError: it does not exist, or its configuration is broken.
    """
    model = settings.model
    source = resolve(model.model, revision=model.revision, token=model.hf_token, cache_dir=settings.load.download_dir)
    config = load_model_config(source, model.hf_overrides, model.model_impl)
    return source, with_pooling(config, source, model, partial(tokenizer_path, settings, source))


def load_model_config(
    source: ModelSource, overrides: dict[str, Any] | None = None, model_impl: ModelImpl = "auto"
) -> ModelConfig:
    """The model's shape. Reads no weights.

    Args:
        overrides: values that replace those of config.json.
        model_impl: who implements the model; see :class:`octavo.config.settings.ModelSettings`.

    Raises:
        UnsupportedModelError: the configuration is missing or broken, or has an invalid value.
        WeightsError: a GGUF file is truncated or corrupted.
    """
    if source.kind == "gguf":
        if model_impl == "transformers":
            raise UnsupportedModelError("model_impl=transformers needs a model folder, not a GGUF file.")
        return parse_config(_apply_overrides(gguf_raw_config(GGUFFile.open(source.path)), overrides or {}))
    raw = with_sidecar(read_json(source.path / "config.json"), source.path)
    raw = _apply_overrides(raw, overrides or {})
    config = parse_config(as_generative_config(raw), model_impl)
    more = token_ids(load_generation_config(source).get("eos_token_id"), config.vocab_size)
    return dataclasses.replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *more))))


def load_generation_config(source: ModelSource) -> dict[str, Any]:
    """Sampling defaults that come with the model; empty if there are none.

    Raises:
        UnsupportedModelError: the file is there but no JSON object.
        WeightsError: a GGUF file is truncated or corrupted.
    """
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
    """The location of the tokenizer's files: with the model, unless the settings name another place.

    Raises:
        ModelNotFoundError: there is nothing at that path.
    """
    model = settings.model
    if model.tokenizer is None:
        return source.path
    return find_files(
        model.tokenizer, revision=model.tokenizer_revision, token=model.hf_token, cache_dir=settings.load.download_dir
    )
