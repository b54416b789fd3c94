"""Phi-1, Phi-1.5 and Phi-2: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    return BlockFields(
        is_parallel=True,
        has_shared_norm=True,
        head_bias=True,
        head_norm="shared" if values.flag("qk_layernorm") else "none",
    )


FAMILIES = {
    "PhiForCausalLM": DecoderFamily(
        model="octavo.models.phi:PhiForCausalLM",
        model_type="phi",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "hidden_act": "gelu_new",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_own,
    )
}
