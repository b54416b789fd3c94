"""GPT-2 and GPTBigCode: configuration parsing."""

from functools import partial
from typing import Any

from octavo.hub.block_fields import BlockFields, QKVStorage
from octavo.hub.config_values import ConfigValues, reject_flags
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
"""What GPT-2 and its descendants call the usual keys."""


def four_times_hidden(values: ConfigValues) -> dict[str, Any]:
    """The feed-forward layer's size where the configuration leaves it out."""
    size = values.optional_count("intermediate_size")
    return {"intermediate_size": 4 * values.count("hidden_size") if size is None else size}


def _one_key_head(values: ConfigValues) -> dict[str, Any]:
    return four_times_hidden(values) | {"num_key_value_heads": 1 if values.flag("multi_query") else None}


def _parse_own(values: ConfigValues, config: ModelConfig, *, is_transposed: bool) -> BlockFields:
    reject_flags(values, "add_cross_attention")
    is_from_gguf = values.flag("is_from_gguf")  # whose converter transposes weights and sorts their rows
    qkv: QKVStorage = "fused" if is_transposed or is_from_gguf or config.num_kv_heads == 1 else "by_head"
    return BlockFields(
        qkv=qkv,
        is_transposed=is_transposed and not is_from_gguf,
        positions="learned",
        attention_scale=None if values.flag("scale_attn_weights") else 1.0,
        is_scaled_by_layer=values.flag("scale_attn_by_inverse_layer_idx"),
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "eos_token_id": 50256,
}
_FIXED = NO_WINDOW | {"head_dim": None}

FAMILIES = {
    "GPT2LMHeadModel": DecoderFamily(
        model="octavo.models.gpt2:GPT2LMHeadModel",
        model_type="gpt2",
        names=GPT2_NAMES,
        defaults={**_DEFAULTS, "hidden_act": "gelu_new"},
        fixed=_FIXED | {"num_key_value_heads": None},
        derive=four_times_hidden,
        parse_own=partial(_parse_own, is_transposed=True),
    ),
    "GPTBigCodeForCausalLM": DecoderFamily(
        model="octavo.models.gpt2:GPT2LMHeadModel",
        model_type="gpt_bigcode",
        names=GPT2_NAMES,
        defaults={**_DEFAULTS, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        fixed=_FIXED | {"scale_attn_by_inverse_layer_idx": False},
        derive=_one_key_head,
        parse_own=partial(_parse_own, is_transposed=False),
    ),
}
