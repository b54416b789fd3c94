"""Nemotron and Minitron: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(norm="unit_offset", qkv_bias=has_bias, output_bias=has_bias, mlp_bias=values.flag("mlp_bias"))


FAMILIES = {
    "NemotronForCausalLM": DecoderFamily(
        model="octavo.models.layer_norm_decoder:LayerNormDecoder",
        model_type="nemotron",
        names={"rms_norm_eps": "norm_eps"},
        defaults={
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 32,
            "num_attention_heads": 48,
            "max_position_embeddings": 4096,
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "eos_token_id": 3,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_own,
    )
}
