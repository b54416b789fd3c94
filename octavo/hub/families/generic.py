"""Models that have no family here, but that the transformers library implements: their configurations.

The library's configuration class knows defaults and old names of keys; the quantities that the engine needs of every
model are read from it. The model itself is built in :mod:`octavo.models.generic`. The library is imported for such
models only.
"""

import contextlib
import copy
import functools
from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import MAX_LAYERS, ConfigValues
from octavo.hub.decoder_config import checkpoint_dtype, token_ids
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig

MODEL = "octavo.models.generic.model:GenericForCausalLM"

_FULL: LayerType = "full_attention"
_MAX_POSITIONS = 1 << 27
_DEFAULT_POSITIONS = 2048
# Keys of the sizes that families name differently; the first that has a value counts.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_INTERMEDIATE = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "moe_intermediate_size")
_USUAL = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
# Suffixes of a decoder's pooling models.
_OTHER_FORMS = ("ForSequenceClassification", "ForTokenClassification", "Model")
# Keys of the configurations of a multimodal model's parts.
_PARTS = ("text_config", "vision_config", "audio_config", "vq_config", "depth_decoder_config")
# Kinds of layers whose state is not keys and values.
_STATEFUL_LAYERS = ("linear_attention", "mamba", "conv", "recurrent", "hybrid")


@dataclass(frozen=True, slots=True)
class GenericFields:
    """Marks a configuration whose model is built from the transformers library."""


def causal_name(architecture: str) -> str:
    """The library's causal language model of this name, or the one that another form is built on; empty for none."""
    forms = [architecture, *(architecture.removesuffix(suffix) + "ForCausalLM" for suffix in _OTHER_FORMS)]
    return next((name for name in forms if name in _causal_models()), "")


@functools.cache
def _causal_models() -> frozenset[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return frozenset(name for entry in names for name in ((entry,) if isinstance(entry, str) else entry))


def library_config(raw: dict[str, Any]) -> Any:
    """The library's configuration object of a config.json.

    Raises:
        UnsupportedModelError: the library does not know the model's type, or rejects a value.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(f"The model's type {model_type!r} is unknown to the transformers library.")
    try:
        return CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(raw))
    except Exception as error:  # validators of many authors
        raise UnsupportedModelError(f"The transformers library rejects the model's configuration: {error}") from error


def parse(architecture: str, raw: dict[str, Any]) -> ModelConfig:
    """The configuration of a model.

    Args:
        raw: what config.json holds.

    Raises:
        UnsupportedModelError: a value is invalid, or the kind of model is not supported.
    """
    library = library_config(raw)
    _check_kind(architecture, library)
    return parse_shared(causal_name(architecture), raw, library)


def parse_shared(architecture: str, raw: dict[str, Any], library: Any) -> ModelConfig:
    """What the engine needs to know of any of the library's models.

    Args:
        architecture: the library's class.
        library: its configuration object.
    """
    values = ConfigValues(_filled(library), {}, {})
    heads = values.count("num_attention_heads")
    hidden_size, vocab_size = values.count("hidden_size"), values.count("vocab_size")
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    return ModelConfig(
        architecture=architecture,
        model_type=library.model_type,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=values.optional_count("num_key_value_heads") or heads,
        head_dim=values.optional_count("head_dim") or max(hidden_size // heads, 1),
        intermediate_size=_first_count(values, _INTERMEDIATE) or 4 * hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=_first_count(values, _POSITIONS) or _DEFAULT_POSITIONS,
        rms_norm_eps=1e-6,
        rope=RopeConfig(10000.0),
        layer_types=(_FULL,) * num_layers,
        sliding_window=None,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        hidden_act="",
        dtype=checkpoint_dtype(ConfigValues(raw, {}, {})),
        eos_token_ids=token_ids(values.get("eos_token_id"), vocab_size),
        own=GenericFields(),
        quantization=raw.get("quantization_config") or raw.get("compression_config") or {},
        raw=raw,
    )


def _check_kind(architecture: str, library: Any) -> None:
    """Reject models that are more than a decoder of text with attention."""
    check_parts(architecture, library)
    reasons = {
        "it has layers with a recurrent state": _is_stateful(library),
        "it is an encoder": getattr(library, "is_decoder", True) is False and hasattr(library, "add_cross_attention"),
        "it attends to another model's output": getattr(library, "add_cross_attention", False),
        "it adds ALiBi biases to its scores": getattr(library, "alibi", False),
    }
    for reason, applies in reasons.items():
        if applies:
            raise not_served(architecture, reason)


def check_parts(architecture: str, library: Any) -> None:
    """Reject models of several parts."""
    if getattr(library, "is_encoder_decoder", False):
        raise not_served(architecture, "it has an encoder and a decoder")
    if any(key in _PARTS for key in library.sub_configs):
        raise not_served(architecture, "it is a multimodal model")


def not_served(architecture: str, reason: str) -> UnsupportedModelError:
    """The error for a model that the library implements, but that cannot run here."""
    return UnsupportedModelError(f"The transformers library's code for {architecture} cannot be used: {reason}.")


def _is_stateful(library: Any) -> bool:
    kinds = getattr(library, "layer_types", None) or getattr(library, "layers_block_type", None) or ()
    return any(isinstance(kind, str) and kind in _STATEFUL_LAYERS for kind in kinds)


def _filled(library: Any) -> dict[str, Any]:
    """The configuration's values under the usual names, the library's names of its own ones included."""
    values: dict[str, Any] = library.to_dict()
    for name in (*library.attribute_map, *_USUAL):
        with contextlib.suppress(Exception):  # absent, or different from layer to layer
            values[name] = getattr(library, name)
    return values


def _first_count(values: ConfigValues, keys: tuple[str, ...]) -> int | None:
    counts = (values.optional_count(key, _MAX_POSITIONS) for key in keys)
    return next((count for count in counts if count is not None), None)
