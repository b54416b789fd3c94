"""GPT-NeoX: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(
        qkv="fused" if values.flag("is_from_gguf") else "by_head",
        qkv_bias=has_bias,
        output_bias=has_bias,
        is_parallel=values.flag("use_parallel_residual"),
    )


FAMILIES = {
    "GPTNeoXForCausalLM": DecoderFamily(
        model="octavo.models.gpt_neox:GPTNeoXForCausalLM",
        model_type="gpt_neox",
        names={
            "rms_norm_eps": "layer_norm_eps",
            "rope_theta": "rotary_emb_base",
            "partial_rotary_factor": "rotary_pct",
        },
        defaults={
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.25,
            "attention_bias": True,
            "use_parallel_residual": True,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW | {"num_key_value_heads": None, "head_dim": None},
        parse_own=_parse_own,
    )
}
