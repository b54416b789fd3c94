"""Llama 1 to 3, and models of the same architecture: SmolLM, TinyLlama and many more."""

from functools import partial

from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class LlamaForCausalLM(DecoderLM):
    """arXiv:2302.13971, arXiv:2407.21783."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(LlamaFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            attention = RotaryAttention(
                config, index, build.at("self_attn"), qkv_bias=own.attention_bias, output_bias=own.attention_bias
            )
            feed_forward = GatedMLP(
                config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"), bias=own.mlp_bias
            )
            return PreNormLayer(attention, feed_forward, norm)

        super().__init__(config, build, layer, max_positions)
