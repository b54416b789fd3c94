"""Qwen2 and Qwen2.5: Llama's block with a bias on queries, keys and values."""

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.models.base import TrunkLM


class Qwen2ForCausalLM(TrunkLM):
    """arXiv:2407.10671."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int) -> PreNormLayer:
            return PreNormLayer(config, RotaryAttention(config, index, build), build)

        super().__init__(config, build, layer, max_positions)
