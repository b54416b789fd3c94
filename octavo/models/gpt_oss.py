"""gpt-oss: attention sinks, windows in every other layer, experts with biases and a clamped gate."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from octavo.hub.families.gpt_oss import GptOssFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.head_terms import AttentionTerms
from octavo.layers.moe import feed_forward
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class GptOssForCausalLM(DecoderLM):
    """arXiv:2508.10925."""

    module_names: ClassVar[Mapping[str, str]] = {"gate": "router"}

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(GptOssFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            attention = RotaryAttention(
                config,
                index,
                build.at("self_attn"),
                qkv_bias=own.attention_bias,
                output_bias=own.attention_bias,
                terms=AttentionTerms(config.num_heads, build, has_sinks=True),
            )
            return PreNormLayer(attention, feed_forward(config, own.experts, index, build.at("mlp")), norm)

        super().__init__(config, build, layer, max_positions)
