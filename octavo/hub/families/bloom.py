"""BLOOM: configuration parsing."""

from typing import Any

from octavo.hub.block_fields import BlockFields, QKVStorage
from octavo.hub.config_values import ConfigValues, reject_flags
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _derive(values: ConfigValues) -> dict[str, Any]:
    hidden_size = values.optional_count("n_embed") or values.count("hidden_size")
    return {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size}


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    reject_flags(values, "apply_residual_connection_post_layernorm")
    qkv: QKVStorage = "fused" if values.flag("is_from_gguf") else "by_head"
    return BlockFields(qkv=qkv, positions="alibi", has_embedding_norm=True)


FAMILIES = {
    "BloomForCausalLM": DecoderFamily(
        model="octavo.models.bloom:BloomForCausalLM",
        model_type="bloom",
        names={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        },
        fixed={
            **NO_WINDOW,
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": None,
            "head_dim": None,
        },
        derive=_derive,
        parse_own=_parse_own,
    )
}
