"""Baichuan 1 and 2: configuration parsing."""

from typing import Any

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig


def _derive(values: ConfigValues) -> dict[str, Any]:
    """Models with ALiBi give their length by another name."""
    if values.get("max_position_embeddings") is not None:
        return {"has_alibi": False}
    return {"has_alibi": True, "max_position_embeddings": values.count("model_max_length")}


def _parse_own(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    unrotated = range(config.num_layers) if values.flag("has_alibi") else ()
    return LlamaFields(has_fused_qkv=True, unrotated=frozenset(unrotated))


_FAMILY = DecoderFamily(
    model="octavo.models.baichuan:BaichuanForCausalLM",
    model_type="baichuan",
    defaults={
        "vocab_size": 64000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": None,
        "model_max_length": 4096,
        "eos_token_id": 2,
    },
    fixed=NO_WINDOW | {"num_key_value_heads": None, "head_dim": None},
    derive=_derive,
    parse_own=_parse_own,
)

FAMILIES = {"BaiChuanForCausalLM": _FAMILY, "BaichuanForCausalLM": _FAMILY}
