"""OLMoE and FlexOlmo: configuration parsing."""

from dataclasses import replace

from octavo.hub.config_values import ConfigValues, reject_values
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.sparse import SparseFields, uniform_experts
from octavo.hub.model_config import ModelConfig


def _olmo(values: ConfigValues, config: ModelConfig) -> SparseFields:
    reject_values(values, "clip_qkv")
    bias = values.flag("attention_bias")
    return SparseFields(uniform_experts(values, config), bias, bias, "projections")


def _flex_olmo(values: ConfigValues, config: ModelConfig) -> SparseFields:
    return replace(_olmo(values, config), layer="post-norm")


FAMILIES = {
    "OlmoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="olmoe",
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 8,
            "num_experts": 64,
            "eos_token_id": 50279,
        },
        fixed=NO_WINDOW,
        parse_own=_olmo,
    ),
    "FlexOlmoForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="flex_olmo",
        defaults={
            "vocab_size": 100352,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "rope_theta": 500_000.0,
            "num_experts_per_tok": 5,
            "num_experts": 7,
            "eos_token_id": 100257,
        },
        fixed=NO_WINDOW | {"clip_qkv": None},
        parse_own=_flex_olmo,
    ),
}
