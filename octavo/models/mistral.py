"""Mistral: Llama's block, with a sliding window in the early models."""

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.models.base import TrunkLM


class MistralForCausalLM(TrunkLM):
    """arXiv:2310.06825. Which layers slide stands in the configuration; the cache groups see to it."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int) -> PreNormLayer:
            return PreNormLayer(config, RotaryAttention(config, index, build), build)

        super().__init__(config, build, layer, max_positions)
