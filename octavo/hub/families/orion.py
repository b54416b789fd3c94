"""Orion: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(is_gated=True, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=False)


FAMILIES = {
    "OrionForCausalLM": DecoderFamily(
        model="octavo.models.layer_norm_decoder:LayerNormDecoder",
        model_type="orion",
        defaults={
            "vocab_size": 84608,
            "hidden_size": 4096,
            "intermediate_size": 15360,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_own,
    )
}
