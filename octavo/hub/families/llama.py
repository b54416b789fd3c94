"""Llama and Mistral: configuration parsing."""

from dataclasses import dataclass, replace
from typing import Any

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LlamaFields:
    """What varies in Llama's layer.

    Attributes:
        attention_bias, output_bias, mlp_bias: biases of queries, keys and values, of the attention's output, and of the
            feed-forward part.
        has_head_norms: whether each head's query and key are normed.
        is_gated: whether the feed-forward part has a gate.
        is_interleaved: whether checkpoints have rotary pairs ``(2i, 2i + 1)``.
        has_fused_qkv, has_fused_gate_up: whether checkpoints have these layers as one.
        has_post_norms: whether what is added to the residual stream is normed.
        unrotated: layers without rotary embedding.
    """

    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_head_norms: bool = False
    is_gated: bool = True
    is_interleaved: bool = False
    has_fused_qkv: bool = False
    has_fused_gate_up: bool = False
    has_post_norms: bool = False
    unrotated: frozenset[int] = frozenset()


def parse_biases(values: ConfigValues, config: ModelConfig, **code: Any) -> LlamaFields:
    """The fields that a configuration has.

    Args:
        code: fields that the family's code fixes.
    """
    bias = values.flag("attention_bias")
    fields = LlamaFields(attention_bias=bias, output_bias=bias, mlp_bias=values.flag("mlp_bias"))
    return replace(fields, **code)


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
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
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
            "eos_token_id": 2,
        },
    ),
}
