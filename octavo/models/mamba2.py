"""Mamba-2: layers of one recurrent mixer each, without attention, feed-forward part or positions."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from octavo.hub.families.mamba2 import Mamba2Fields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import MixerLayer
from octavo.layers.mamba2 import Mamba2Mixer, StateSpaceSizes
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class Mamba2ForCausalLM(DecoderLM):
    """arXiv:2405.21060."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "backbone.embeddings.",
        "model.norm.": "backbone.norm_f.",
        "model.": "backbone.",
    }

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Mamba2Fields)
        sizes = StateSpaceSizes(config.num_heads, config.head_dim, own.num_groups, own.state_size, own.conv_width)

        def layer(index: int, build: Build) -> MixerLayer:
            mixer = Mamba2Mixer(
                config.hidden_size,
                sizes,
                build.at("mixer"),
                eps=config.rms_norm_eps,
                dt_limit=own.time_step_limit,
                bias=own.use_bias,
                conv_bias=own.use_conv_bias,
            )
            return MixerLayer(mixer, partial(RMSNorm, config.hidden_size, config.rms_norm_eps))

        super().__init__(config, build, layer, max_positions, ropes={})
