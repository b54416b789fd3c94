"""Jais 2: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(qkv_bias=has_bias, output_bias=has_bias, mlp_bias=values.flag("mlp_bias"))


FAMILIES = {
    "Jais2ForCausalLM": DecoderFamily(
        model="octavo.models.layer_norm_decoder:LayerNormDecoder",
        model_type="jais2",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={
            "vocab_size": 150272,
            "hidden_size": 3328,
            "intermediate_size": 26624,
            "num_hidden_layers": 32,
            "num_attention_heads": 26,
            "max_position_embeddings": 8192,
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "mlp_bias": True,
            "eos_token_id": 150024,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_own,
    )
}
