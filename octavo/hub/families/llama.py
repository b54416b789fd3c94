"""Llama and Mistral: configuration parsing."""

from dataclasses import dataclass

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LlamaFields:
    """What varies in Llama's layer: biases of the attention's projections and of the feed-forward part."""

    attention_bias: bool = False
    mlp_bias: bool = False


def parse_biases(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    """The biases that a configuration asks for."""
    return LlamaFields(attention_bias=values.flag("attention_bias"), mlp_bias=values.flag("mlp_bias"))


FAMILIES = {
    "LlamaForCausalLM": DecoderFamily(
        model="octavo.models.llama:LlamaForCausalLM",
        model_type="llama",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        fixed={"sliding_window": None, "layer_types": None},
        parse_own=parse_biases,
    ),
    "MistralForCausalLM": DecoderFamily(
        model="octavo.models.mistral:MistralForCausalLM",
        model_type="mistral",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
