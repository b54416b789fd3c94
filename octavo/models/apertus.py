"""Apertus: Llama's layer with norms of heads and a feed-forward part with xIELU."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.activation import XIELU, activation_of
from octavo.layers.build import Build
from octavo.layers.mlp import MLP
from octavo.models.llama import LlamaForCausalLM


class ApertusForCausalLM(LlamaForCausalLM):
    """arXiv:2509.14233."""

    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "attention_layernorm",
        "post_attention_layernorm": "feedforward_layernorm",
    }

    def feed_forward(self, config: ModelConfig, own: LlamaFields, build: Build) -> MLP:
        """See :meth:`LlamaForCausalLM.feed_forward`."""
        activation = XIELU() if config.hidden_act == "xielu" else activation_of(config.hidden_act)
        return MLP(config.hidden_size, config.intermediate_size, activation, build)
