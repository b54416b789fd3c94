"""Builds the model of a configuration. Architectures are registered in :mod:`octavo.hub.families.registry`."""

import importlib

from octavo.errors import UnsupportedModelError
from octavo.hub.families.registry import FAMILIES, unsupported_architecture
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.pooling import Pooler
from octavo.models.base import CausalLM
from octavo.models.pooled import EncoderBackbone, PooledModel, as_pooled


def supported_architectures() -> list[str]:
    """Names of all architectures, sorted."""
    return sorted(FAMILIES)


def check_supported(architecture: str, *, has_own_code: bool = False) -> None:
    """Check that an architecture is supported.

    Args:
        has_own_code: the model's folder has code for it, which is never run.

    Raises:
        UnsupportedModelError: it is not; the message lists similar names.
    """
    if architecture not in FAMILIES:
        raise UnsupportedModelError(unsupported_architecture(architecture, has_own_code=has_own_code))


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
    if not config.is_encoder:
        return as_pooled(build_model(config, build, max_positions), config)
    assert config.pooling is not None, "the configuration of a model that answers with vectors"
    backbone: EncoderBackbone = _model_class(config)(config, build)
    return PooledModel(backbone, Pooler(config.pooling), backbone.weight_prefix).eval()


def _model_class(config: ModelConfig) -> type:
    check_supported(config.architecture)
    module, _, name = FAMILIES[config.architecture].model.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found
