"""Gemma 3 (text): interleaved local and global attention layers, norms before and after each part."""

from functools import partial

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
        norm = partial(UnitOffsetRMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int) -> SandwichNormLayer:
            attention = RotaryAttention(
                config,
                index,
                build,
                rope=LOCAL_ROPE if config.layer_types[index] == "sliding_attention" else MAIN_ROPE,
                head_norm=UnitOffsetRMSNorm,
                qkv_bias=config.attention_bias,
                output_bias=config.attention_bias,
                scale=(config.query_pre_attn_scalar or config.head_dim) ** -0.5,
                softcap=config.attn_logit_softcap,
            )
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build)
            return SandwichNormLayer(attention, feed_forward, norm)

        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=UnitOffsetRMSNorm,
            embedding_scale=config.hidden_size**0.5,
            local_rope=config.local_rope or config.rope,
            softcap=config.final_logit_softcap,
        )
