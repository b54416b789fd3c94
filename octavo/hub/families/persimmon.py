"""Persimmon: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    return BlockFields(qkv="by_head", head_norm="shared" if values.flag("qk_layernorm") else "none")


FAMILIES = {
    "PersimmonForCausalLM": DecoderFamily(
        model="octavo.models.persimmon:PersimmonForCausalLM",
        model_type="persimmon",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={
            "vocab_size": 262144,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "max_position_embeddings": 16384,
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "qk_layernorm": True,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW | {"num_key_value_heads": None, "head_dim": None},
        parse_own=_parse_own,
    )
}
