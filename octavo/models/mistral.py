"""Mistral: Llama's layer, with a sliding window in the early models."""

from functools import partial

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class MistralForCausalLM(DecoderLM):
    """arXiv:2310.06825. The configuration says which layers have a sliding window; cache groups implement it."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            attention = RotaryAttention(config, index, build.at("self_attn"))
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"))
            return PreNormLayer(attention, feed_forward, norm)

        super().__init__(config, build, layer, max_positions)
