"""Llama 1 to 3, and models with the same layer: SmolLM, TinyLlama, and those in ``hub/families/llama_variants.py``."""

from functools import partial
from typing import ClassVar

from torch import nn

from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.activation import activation_of
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention, SandwichNormLayer
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE, NO_ROPE
from octavo.models.base import DecoderLM


class LlamaForCausalLM(DecoderLM):
    """arXiv:2302.13971, arXiv:2407.21783.

    Attributes:
        attention_type: class of the attention module.
    """

    attention_type: ClassVar[type[RotaryAttention]] = RotaryAttention

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(LlamaFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        kind = SandwichNormLayer if own.has_post_norms else PreNormLayer

        def layer(index: int, build: Build) -> nn.Module:
            attention = self.attention_type(
                config,
                index,
                build.at("self_attn"),
                rope=NO_ROPE if index in own.unrotated else MAIN_ROPE,
                head_norm=RMSNorm if own.has_head_norms else None,
                qkv_bias=own.attention_bias,
                output_bias=own.output_bias,
                is_fused=own.has_fused_qkv,
                is_interleaved=own.is_interleaved,
            )
            return kind(attention, self.feed_forward(config, own, build.at("mlp")), norm)

        super().__init__(config, build, layer, max_positions, ropes=self.tables(config, own))

    def tables(self, config: ModelConfig, own: LlamaFields) -> dict[str, RopeConfig | QueryScaling | None]:
        """The tables that layers use; see :class:`DecoderLM`."""
        return {MAIN_ROPE: config.rope} | ({NO_ROPE: None} if own.unrotated else {})

    def feed_forward(self, config: ModelConfig, own: LlamaFields, build: Build) -> GatedMLP | MLP:
        """A layer's feed-forward part."""
        sizes = config.hidden_size, config.intermediate_size
        if own.is_gated:
            return GatedMLP(*sizes, config.hidden_act, build, bias=own.mlp_bias, is_fused=own.has_fused_gate_up)
        return MLP(*sizes, activation_of(config.hidden_act), build, bias=own.mlp_bias)
