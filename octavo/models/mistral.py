"""Mistral: Llama's block, with a sliding window in the early models."""

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.models.base import TrunkLM


class MistralForCausalLM(TrunkLM):
    """arXiv:2310.06825. The configuration says which layers have a sliding window; cache groups implement it."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int) -> PreNormLayer:
            return PreNormLayer(config, RotaryAttention(config, index, build), build)

        super().__init__(config, build, layer, max_positions)
