"""Qwen2 and Qwen2.5: Llama's layer with a bias on queries, keys and values."""

from functools import partial

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class Qwen2ForCausalLM(DecoderLM):
    """arXiv:2407.10671."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            attention = RotaryAttention(config, index, build.at("self_attn"), qkv_bias=True)
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"))
            return PreNormLayer(attention, feed_forward, norm)

        super().__init__(config, build, layer, max_positions)
