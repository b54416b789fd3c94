"""The registry of architectures, by the names in checkpoints' ``config.json``."""

import importlib

from octavo.errors import UnsupportedModelError
from octavo.hub.encoder_families import ENCODERS
from octavo.hub.families import unsupported_architecture
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.models.base import CausalLM
from octavo.models.pooled import PooledModel, as_pooled, build_encoder

_FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "octavo.models.llama",
    "MistralForCausalLM": "octavo.models.mistral",
    "Qwen2ForCausalLM": "octavo.models.qwen2",
    "Qwen3ForCausalLM": "octavo.models.qwen3",
    "Gemma3ForCausalLM": "octavo.models.gemma3",
}


def supported_architectures() -> list[str]:
    """Names of all architectures, sorted."""
    return sorted([*_FAMILIES, *ENCODERS])


def check_supported(architecture: str, *, has_own_code: bool = False) -> None:
    """Check that an architecture is supported.

    Args:
        has_own_code: the model's folder has code for it, which is never run.

    Raises:
        UnsupportedModelError: it is not; the message lists similar names.
    """
    if architecture not in _FAMILIES and architecture not in ENCODERS:
        raise UnsupportedModelError(unsupported_architecture(architecture, has_own_code=has_own_code))


def build_model(config: ModelConfig, build: Build, max_positions: int) -> CausalLM:
    """Build the model with uninitialised weights, of torch's default type on torch's default device.

    Args:
        max_positions: maximum sequence length in tokens.
    """
    check_supported(config.architecture)
    family = getattr(importlib.import_module(_FAMILIES[config.architecture]), config.architecture)
    model: CausalLM = family(config, build, max_positions)
    return model.eval()


def build_pooled(config: ModelConfig, build: Build, max_positions: int) -> PooledModel:
    """Build a pooling model as described by ``config.pooling``; see :func:`build_model`.

    Raises:
        UnsupportedModelError: the architecture is unknown or does not support it.
    """
    check_supported(config.architecture)
    if config.encoder is not None:
        return build_encoder(config, build)
    return as_pooled(build_model(config, build, max_positions), config)
