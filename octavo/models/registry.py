"""Builds the model of a configuration. Architectures are registered in :mod:`octavo.hub.families.registry`."""

from pkgutil import resolve_name

from octavo.errors import UnsupportedModelError
from octavo.hub.families import generic, generic_encoder
from octavo.hub.families.generic import GenericFields
from octavo.hub.families.generic_encoder import LibraryEncoderFields
from octavo.hub.families.registry import FAMILIES, family_of, unsupported_architecture
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.pooling import Pooler
from octavo.models.base import CausalLM
from octavo.models.pooled import EncoderBase, PooledModel, as_pooled


def supported_architectures() -> list[str]:
    """Names of all architectures, sorted."""
    return sorted(FAMILIES)


def check_supported(config: ModelConfig) -> None:
    """Check that a model's architecture is supported, by a family or by the transformers library.

    Raises:
        UnsupportedModelError: it is not; the message lists similar names.
    """
    _model_of(config)


def build_model(config: ModelConfig, build: Build, max_positions: int) -> CausalLM:
    """Build the model with uninitialised weights, of torch's default type on torch's default device.

    Args:
        max_positions: maximum sequence length in tokens.
    """
    model: CausalLM = _model_class(config)(config, build, max_positions)
    return model.eval()


def build_pooled(config: ModelConfig, build: Build, max_positions: int) -> PooledModel:
    """Build a pooling model as described by ``config.pooling``; see :func:`build_model`.

    Raises:
        UnsupportedModelError: the architecture is unknown or does not support it.
    """
    assert config.pooling is not None, "the configuration of a pooling model"
    backbone: CausalLM | EncoderBase = _model_class(config)(config, build, max_positions)
    if isinstance(backbone, CausalLM):
        return as_pooled(backbone, config)
    return PooledModel(backbone, Pooler(config.pooling), backbone.weight_prefix).eval()


def _model_class(config: ModelConfig) -> type:
    found: type = resolve_name(_model_of(config))
    return found


def _model_of(config: ModelConfig) -> str:
    """The model's class, as ``module:class``."""
    if isinstance(config.own, GenericFields):
        return generic.MODEL
    if isinstance(config.own, LibraryEncoderFields):
        return generic_encoder.MODEL
    if config.architecture not in FAMILIES:
        has_own_code = "auto_map" in config.raw
        raise UnsupportedModelError(unsupported_architecture(config.architecture, has_own_code=has_own_code))
    return family_of(config.architecture).model
