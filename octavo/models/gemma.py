"""Gemma 1 to 3 (text): scaled embeddings and norms around one.

From version 2, windows alternate with full attention, and what a layer adds to the stream is normed. Version 2 caps
attention scores and logits; version 3 norms each head's query and key, and local layers have their own rotary base.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from torch import nn

from octavo.hub.families.gemma import GemmaFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention, SandwichNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import UnitOffsetRMSNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.models.base import DecoderLM


class GemmaForCausalLM(DecoderLM):
    """arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(GemmaFields)
        norm = partial(UnitOffsetRMSNorm, config.hidden_size, config.rms_norm_eps)
        ropes = {MAIN_ROPE: config.rope}
        if own.local_rope is not None:
            ropes[LOCAL_ROPE] = own.local_rope
        kind = SandwichNormLayer if own.has_post_norms else PreNormLayer

        def layer(index: int, build: Build) -> nn.Module:
            is_local = config.layer_types[index] == "sliding_attention"
            attention = RotaryAttention(
                config,
                index,
                build.at("self_attn"),
                rope=LOCAL_ROPE if is_local and own.local_rope is not None else MAIN_ROPE,
                head_norm=UnitOffsetRMSNorm if own.has_head_norms else None,
                qkv_bias=own.attention_bias,
                output_bias=own.attention_bias,
                scale=own.query_pre_attn_scalar**-0.5,
                softcap=own.attn_logit_softcap,
            )
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"))
            return kind(attention, feed_forward, norm)

        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=UnitOffsetRMSNorm,
            embedding_scale=config.hidden_size**0.5,
            ropes=ropes,
            softcap=own.final_logit_softcap,
        )


class VaultGemmaForCausalLM(GemmaForCausalLM):
    """Gemma 2 without norms of what is added to the stream (arXiv:2510.15001)."""

    module_names: ClassVar[Mapping[str, str]] = {"post_attention_layernorm": "pre_feedforward_layernorm"}
