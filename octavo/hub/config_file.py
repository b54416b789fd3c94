"""Converts a config.json to a :class:`ModelConfig`, with the family's defaults and full validation."""

from dataclasses import replace
from typing import Any

from octavo.config.values import ModelImpl
from octavo.errors import UnsupportedModelError
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families import generic, generic_encoder
from octavo.hub.families.registry import FAMILIES, family_of, unsupported_architecture
from octavo.hub.model_config import ModelConfig

_TEXT = "text_config"
_NOT_PARTS = (_TEXT, "quantization_config", "compression_config")


def parse_config(raw: dict[str, Any], model_impl: ModelImpl = "auto") -> ModelConfig:
    """Build a model's configuration.

    Understands the keys of transformers 4 (``rope_theta``, ``rope_scaling``, ``torch_dtype``) and of transformers 5
    (``rope_parameters``, for each kind of layer where they differ; ``dtype``). Of a model with several parts, the
    language model (``text_config``) is parsed, with the whole configuration's values for keys that it lacks; the other
    parts are in :attr:`ModelConfig.parts`.

    Args:
        model_impl: see :func:`octavo.hub.load.load_model_config`.
    """
    architecture = _architecture(raw)
    if model_impl == "transformers" or (model_impl == "auto" and architecture not in FAMILIES):
        if generic_encoder.encoder_name(architecture):
            return generic_encoder.parse(architecture, raw)
        if generic.causal_name(architecture):
            return generic.parse(architecture, raw)
    if model_impl == "transformers":
        raise UnsupportedModelError(
            f"model_impl is transformers, which has no causal language model and no encoder {architecture!r} in the "
            "installed version."
        )
    text = raw.get(_TEXT)
    is_split = "hidden_size" not in raw and isinstance(text, dict)
    values = {**raw, **text} if is_split and isinstance(text, dict) else raw
    config = _parse(architecture, values)
    parts = {
        key: part
        for key, part in raw.items()
        if is_split and key.endswith("_config") and key not in _NOT_PARTS and isinstance(part, dict)
    }
    return replace(config, raw=raw, parts=parts)


def _parse(architecture: str, values: dict[str, Any]) -> ModelConfig:
    if architecture in FAMILIES:
        return family_of(architecture).parse(architecture, values)
    model_type = values.get("model_type")
    unknown = DecoderFamily("", model_type if isinstance(model_type, str) else "", {})
    try:
        return unknown.parse(architecture, values)
    except UnsupportedModelError as error:
        # An unknown family is the reason for unknown keys, so it is reported first.
        unsupported = unsupported_architecture(architecture, has_own_code="auto_map" in values)
        raise UnsupportedModelError(f"{unsupported} {error}") from None


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnsupportedModelError("The model's configuration names no architecture ('architectures' is missing).")
    return names[0]
