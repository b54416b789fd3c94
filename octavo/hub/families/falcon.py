"""Falcon: configuration parsing."""

from typing import Any

from octavo.hub.block_fields import BlockFields, QKVStorage
from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.gpt2 import four_times_hidden
from octavo.hub.model_config import ModelConfig


def _derive(values: ConfigValues) -> dict[str, Any]:
    if values.flag("new_decoder_architecture"):
        num_kv_heads = values.optional_count("num_kv_heads")
    else:
        num_kv_heads = 1 if values.flag("multi_query") else None
    return four_times_hidden(values) | {"num_key_value_heads": num_kv_heads}


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    is_new, is_parallel = values.flag("new_decoder_architecture"), values.flag("parallel_attn")
    if is_new and not is_parallel:
        raise invalid("parallel_attn", False, "true with new_decoder_architecture")
    num_norms = (values.optional_count("num_ln_in_parallel_attn", limit=2) or 2) if is_new else 1
    is_sorted = values.flag("is_from_gguf") or (values.flag("multi_query") and not is_new)
    qkv: QKVStorage = "fused" if is_sorted else "by_head"
    has_bias = values.flag("bias")
    return BlockFields(
        qkv=qkv,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        is_parallel=is_parallel,
        has_shared_norm=num_norms == 1,
        positions="alibi" if values.flag("alibi") else "rotary",
        is_alibi_scaled=True,
    )


FAMILIES = {
    "FalconForCausalLM": DecoderFamily(
        model="octavo.models.falcon:FalconForCausalLM",
        model_type="falcon",
        names={
            "intermediate_size": "ffn_hidden_size",
            "hidden_act": "activation",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "multi_query": True,
            "parallel_attn": True,
            "tie_word_embeddings": True,
            "eos_token_id": 11,
        },
        fixed=NO_WINDOW | {"head_dim": None},
        derive=_derive,
        parse_own=_parse_own,
    )
}
