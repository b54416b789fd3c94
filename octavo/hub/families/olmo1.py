"""OLMo, the first version: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(
        norm="plain",
        is_gated=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=False,
        clip_qkv=values.optional_number("clip_qkv"),
    )


FAMILIES = {
    "OlmoForCausalLM": DecoderFamily(
        model="octavo.models.layer_norm_decoder:LayerNormDecoder",
        model_type="olmo",
        defaults={
            "vocab_size": 50304,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "eos_token_id": 50279,
        },
        fixed=NO_WINDOW | {"rms_norm_eps": 1e-5},
        parse_own=_parse_own,
    )
}
