"""Determines a pooling model's task from its architecture's suffix, its module files and the settings."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.config.settings import ModelSettings
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.classifier_config import class_spec, labels
from octavo.hub.head_classifier import head_classifier
from octavo.hub.model_config import ModelConfig
from octavo.hub.modules import SentenceModules, read_modules
from octavo.hub.pooler_config import apply_pooler_config
from octavo.hub.purpose import Purpose, declared_architecture, declared_purpose, default_pooling
from octavo.hub.source import ModelSource
from octavo.hub.splade import SPLADE, splade_spec
from octavo.records import DenseSpec, PoolingSpec, PoolingTask

_COLBERT_DIM = 128


def with_pooling(
    config: ModelConfig, source: ModelSource, settings: ModelSettings, find_tokenizer: Callable[[], Path]
) -> ModelConfig:
    """The configuration with its :class:`PoolingSpec`, if the model is a pooling model.

    Args:
        find_tokenizer: finds the tokenizer's files, which only a few models need.

    Raises:
        ConfigError: the settings request something that the model cannot do.
    """
    modules = read_modules(source.path) if source.kind == "folder" else None
    purpose = _purpose(config, modules, settings)
    if purpose == "generate":
        if settings.pooler_config:
            raise ConfigError("pooler_config is for pooling models; add runner=pooling.")
        if config.is_encoder:
            raise ConfigError("The model has bidirectional attention, so it cannot generate text; add runner=pooling.")
        return config
    if purpose in ("classify", "token_classify"):
        from_head = head_classifier(config, find_tokenizer) if purpose == "classify" else None
        spec = class_spec(config, purpose, from_head)
    else:
        spec = _embedding_spec(config, modules, purpose)
    return dataclasses.replace(config, pooling=apply_pooler_config(spec, settings.pooler_config or {}))


def _purpose(config: ModelConfig, modules: SentenceModules | None, settings: ModelSettings) -> Purpose:
    own = declared_purpose(config)
    is_pooling = own != "generate" or modules is not None
    if settings.runner == "generate":
        if own != "generate":
            name = declared_architecture(config)
            raise ConfigError(f"The model's architecture {name!r} does not generate text; leave runner=generate out.")
        return "generate"
    if settings.convert == "none":
        if settings.runner == "pooling" and own == "generate":
            raise ConfigError("runner=pooling needs convert=embed or convert=classify for a generative model.")
        return own
    if settings.convert != "auto":
        if own not in ("generate", settings.convert) and not (own == "token_embed" and settings.convert == "embed"):
            raise ConfigError(
                f"The model's architecture {declared_architecture(config)!r} cannot be used with {settings.convert!r}."
            )
        return settings.convert if own == "generate" else own
    if own != "generate":
        return "token_embed" if modules is not None and modules.pooling is None and modules.dense else own
    if not is_pooling and settings.runner != "pooling":
        return "generate"
    return "token_embed" if modules is not None and modules.pooling is None else "embed"


def _embedding_spec(config: ModelConfig, modules: SentenceModules | None, purpose: Purpose) -> PoolingSpec:
    if declared_architecture(config) == SPLADE:
        return splade_spec(config)
    dense = list(modules.dense) if modules is not None else []
    if declared_purpose(config) == "token_embed":
        dense = [DenseSpec("", "linear", config.hidden_size, _colbert_dim(config.raw), False, "identity")]
    if declared_architecture(config).startswith("Voyage"):
        dense.insert(0, DenseSpec("", "linear", config.hidden_size, len(labels(config.raw)), False, "identity"))
    _check_sizes(dense, config.hidden_size)
    tasks: list[PoolingTask] = ["token_embed"] if purpose == "token_embed" else ["embed", "token_embed"]
    return PoolingSpec(
        tasks=tasks,
        pooling=default_pooling(config) if modules is None or modules.pooling is None else modules.pooling,
        is_encoder=config.is_encoder,
        hidden_size=config.hidden_size,
        dense=dense,
        # A late-interaction model's token vectors are compared by cosine similarity, whatever its files say.
        normalize=modules is None or modules.normalize or purpose == "token_embed",
        dimensions=_matryoshka(config.raw),
        max_length=None if modules is None else modules.max_length,
        prompts={} if modules is None else modules.prompts,
    )


def _check_sizes(dense: list[DenseSpec], hidden_size: int) -> None:
    size = hidden_size
    for layer in dense:
        if layer.in_features != size:
            place, wanted = layer.folder or layer.name, layer.in_features
            raise UnsupportedModelError(f"The layer in {place} takes {wanted} features, but its input has {size}.")
        size = layer.out_features


def _colbert_dim(raw: dict[str, Any]) -> int:
    for key in ("colbert_dim", "dim", "projection_dim"):
        value = raw.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1 << 16:
            return value
    return _COLBERT_DIM


def _matryoshka(raw: dict[str, Any]) -> list[int] | None:
    dimensions = raw.get("matryoshka_dimensions")
    if isinstance(dimensions, list) and all(type(size) is int and size > 0 for size in dimensions):
        return sorted(dimensions)
    return None if raw.get("is_matryoshka") is True else []
