"""MPT: configuration parsing."""

from typing import Any

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues, invalid, reject_flags
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _derive(values: ConfigValues) -> dict[str, Any]:
    return {"intermediate_size": values.count("expansion_ratio") * values.count("hidden_size")}


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    attention = ConfigValues(values.mapping("attn_config"), {"alibi": True, "alibi_bias_max": 8}, {})
    reject_flags(attention, "prefix_lm", "qk_ln", "attn_uses_sequence_id")
    for source, key, only in (
        (attention, "alibi", True),
        (attention, "attn_type", "multihead_attention"),
        (values, "no_bias", True),
        (values, "embedding_fraction", 1.0),
        (values, "norm_type", "low_precision_layernorm"),
        (values, "logit_scale", None),
    ):
        if source.get(key) not in (None, only):
            raise invalid(key, source.get(key), repr(only))
    return BlockFields(
        norm="no_bias",
        qkv="fused",
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        clip_qkv=attention.optional_number("clip_qkv"),
        positions="alibi",
        alibi_bias_max=attention.number("alibi_bias_max"),
        attention_scale=attention.optional_number("softmax_scale"),
    )


_FAMILY = DecoderFamily(
    model="octavo.models.mpt:MptForCausalLM",
    model_type="mpt",
    names={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={
        "vocab_size": 50368,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "expansion_ratio": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    fixed={
        **NO_WINDOW,
        "hidden_act": "gelu",
        "num_key_value_heads": None,
        "head_dim": None,
    },
    derive=_derive,
    parse_own=_parse_own,
)

FAMILIES = {"MptForCausalLM": _FAMILY, "MPTForCausalLM": _FAMILY}
