"""Llama 1 to 3, and models of the same architecture: SmolLM, TinyLlama and many more."""

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.models.base import TrunkLM


class LlamaForCausalLM(TrunkLM):
    """arXiv:2302.13971, arXiv:2407.21783."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int) -> PreNormLayer:
            attention = RotaryAttention(config, index, build, output_bias=config.attention_bias)
            return PreNormLayer(config, attention, build)

        super().__init__(config, build, layer, max_positions)
