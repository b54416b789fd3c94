"""Qwen3: Llama's block with norms on each head's query and key."""

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.norm import RMSNorm
from octavo.models.base import TrunkLM


class Qwen3ForCausalLM(TrunkLM):
    """arXiv:2505.09388."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int) -> PreNormLayer:
            attention = RotaryAttention(config, index, build, norm=RMSNorm, output_bias=config.attention_bias)
            return PreNormLayer(config, attention, build)

        super().__init__(config, build, layer, max_positions)
