"""Gemma 3 (text): interleaved local and global attention layers, norms before and after each part."""

from functools import partial

from octavo.hub.families.gemma3 import Gemma3Fields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention, SandwichNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import UnitOffsetRMSNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.models.base import DecoderLM


class Gemma3ForCausalLM(DecoderLM):
    """arXiv:2503.19786."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Gemma3Fields)
        norm = partial(UnitOffsetRMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> SandwichNormLayer:
            attention = RotaryAttention(
                config,
                index,
                build.at("self_attn"),
                rope=LOCAL_ROPE if config.layer_types[index] == "sliding_attention" else MAIN_ROPE,
                head_norm=UnitOffsetRMSNorm,
                qkv_bias=own.attention_bias,
                output_bias=own.attention_bias,
                scale=own.query_pre_attn_scalar**-0.5,
                softcap=own.attn_logit_softcap,
            )
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"))
            return SandwichNormLayer(attention, feed_forward, norm)

        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=UnitOffsetRMSNorm,
            embedding_scale=config.hidden_size**0.5,
            ropes={MAIN_ROPE: config.rope, LOCAL_ROPE: own.local_rope},
            softcap=own.final_logit_softcap,
        )
