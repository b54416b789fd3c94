"""MiMo-V2-Flash: narrow values, and windows with sinks and twice the key/value heads in most layers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from octavo.hub.families.mimo2 import Mimo2Fields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer
from octavo.layers.moe import feed_forward
from octavo.layers.narrow_attention import NarrowValueAttention
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.models.base import DecoderLM


class MiMoV2FlashForCausalLM(DecoderLM):
    """Xiaomi's model of 2025."""

    module_names: ClassVar[Mapping[str, str]] = {"sinks": "attention_sink_bias"}
    unused_weights = ("model.mtp.",)

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Mimo2Fields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            has_window = config.layer_types[index] == "sliding_attention"
            attention = NarrowValueAttention(
                replace(config, num_kv_heads=2 * config.num_kv_heads) if has_window else config,
                index,
                build.at("self_attn"),
                rope=LOCAL_ROPE if has_window else MAIN_ROPE,
                value_dim=own.value_dim,
                value_scale=own.value_scale,
                qkv_bias=own.qkv_bias,
                has_sinks=has_window,
            )
            return PreNormLayer(attention, feed_forward(config, own.experts, index, build.at("mlp")), norm)

        super().__init__(
            config, build, layer, max_positions, ropes={MAIN_ROPE: config.rope, LOCAL_ROPE: own.local_rope}
        )
