"""GPT-Neo: configuration parsing."""

from itertools import islice
from typing import Any

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.gpt2 import four_times_hidden
from octavo.hub.model_config import LayerType, ModelConfig

_KINDS: dict[object, LayerType] = {"global": "full_attention", "local": "sliding_attention"}


def _derive(values: ConfigValues) -> dict[str, Any]:
    return four_times_hidden(values) | {"layer_types": [_kind(name) for name in _names_of_layers(values)]}


def _names_of_layers(values: ConfigValues) -> list[object]:
    """The kind of attention of each layer; configurations may have it as patterns and how often each is repeated."""
    given = values.get("attention_layers")
    if isinstance(given, list):
        return given
    patterns = values.get("attention_types")
    try:
        return list(islice((name for names, count in patterns for _ in range(count) for name in names), MAX_LAYERS))
    except (TypeError, ValueError):
        raise invalid("attention_types", patterns, "a list of patterns, each with a count") from None


def _kind(name: object) -> LayerType:
    if not isinstance(name, str) or name not in _KINDS:
        raise invalid("attention_types", name, "'global' or 'local' for each layer")
    return _KINDS[name]


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    return BlockFields(qkv_bias=False, positions="learned", attention_scale=1.0)


FAMILIES = {
    "GPTNeoForCausalLM": DecoderFamily(
        model="octavo.models.gpt_neo:GPTNeoForCausalLM",
        model_type="gpt_neo",
        names={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
            "sliding_window": "window_size",
        },
        defaults={
            "vocab_size": 50257,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "hidden_act": "gelu_new",
            "rms_norm_eps": 1e-5,
            "attention_types": [[["global", "local"], 12]],
            "sliding_window": 256,
            "tie_word_embeddings": True,
            "eos_token_id": 50256,
        },
        fixed={"num_key_value_heads": None, "head_dim": None},
        derive=_derive,
        parse_own=_parse_own,
    )
}
