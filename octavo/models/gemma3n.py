"""Gemma 3n (text): AltUp's streams, inputs of tokens for each layer, and caches that the last layers share."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from torch import nn

from octavo.hub.families.gemma3n import Gemma3nFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.altup import AltUp, AltUpLayer, LowRankResidual, StreamsEntry, StreamsMean
from octavo.layers.build import Build
from octavo.layers.layer_inputs import LayerInputs
from octavo.layers.mlp import GatedMLP, SparseGatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.layers.shared_attention import SharedKeysAttention, ValueNormAttention
from octavo.layers.weights import CheckpointNames
from octavo.models.base import DecoderLM

_KEYS = ("k_proj", "v_proj", "k_norm")
"""What layers that share an earlier one's keys and values have in published checkpoints, and do not need."""


class Gemma3nForCausalLM(DecoderLM):
    """Google's model of 2025."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.entry.altup.projections": "model.altup_projections",
        "model.entry.layer_inputs.": "model.",
        "model.norm.altup.projections": "model.altup_unembed_projections",
    }

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Gemma3nFields)
        hidden_size, eps = config.hidden_size, config.rms_norm_eps
        outer = replace(build, names=CheckpointNames(self.checkpoint_names, self.module_names))
        attentions: list[nn.Module] = []

        def layer(index: int, build: Build) -> AltUpLayer:
            attentions.append(_attention(config, own, index, build.at("self_attn"), attentions))
            return AltUpLayer(
                index,
                attentions[index],
                _feed_forward(config, own, index, build.at("mlp")),
                partial(RMSNorm, hidden_size, eps),
                AltUp(own.num_streams, hidden_size, eps, active=own.active_stream),
                LowRankResidual(hidden_size, own.laurel_rank, eps, build.at("laurel")),
                build,
                hidden_size=hidden_size,
                input_size=own.input_size,
                activation=config.hidden_act,
                scales_output=own.scales_output,
            )

        inputs = LayerInputs(
            config.num_layers,
            hidden_size,
            config.vocab_size,
            own.input_vocab_size,
            own.input_size,
            eps,
            outer.at("model.entry.layer_inputs"),
        )
        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=partial(StreamsMean, num_streams=own.num_streams, build=outer.at("model.norm")),
            embedding_scale=hidden_size**0.5,
            entry=StreamsEntry(own.num_streams, hidden_size, inputs, outer.at("model.entry")),
            ropes={MAIN_ROPE: config.rope, LOCAL_ROPE: own.local_rope},
            softcap=own.final_logit_softcap,
        )
        unread = [f"model.layers.{index}.self_attn.{part}." for index in own.shared_layers for part in _KEYS]
        self.unused_weights = (*self.unused_weights, *(outer.names.of(name) for name in unread))


class Gemma3nForConditionalGeneration(Gemma3nForCausalLM):
    """The language part of a checkpoint that has others, too."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        **{name: f"model.language_{other}" for name, other in Gemma3nForCausalLM.checkpoint_names.items()},
        "model.": "model.language_model.",
    }
    unused_weights = ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")


def _attention(
    config: ModelConfig, own: Gemma3nFields, index: int, build: Build, earlier: list[nn.Module]
) -> ValueNormAttention | SharedKeysAttention:
    if index in own.shared_layers:
        source = earlier[own.shared_layers[index]]
        assert isinstance(source, ValueNormAttention), "it has keys of its own"
        return SharedKeysAttention(config, build, source, bias=own.attention_bias)
    return ValueNormAttention(
        config,
        index,
        build,
        is_shared=index in own.shared_layers.values(),
        rope=LOCAL_ROPE if config.layer_types[index] == "sliding_attention" else MAIN_ROPE,
        qkv_bias=own.attention_bias,
        output_bias=own.attention_bias,
        scale=1.0,
    )


def _feed_forward(config: ModelConfig, own: Gemma3nFields, index: int, build: Build) -> nn.Module:
    sizes = config.hidden_size, own.mlp_sizes[index]
    if own.sparsity[index] == 0:
        return GatedMLP(*sizes, config.hidden_act, build)
    return SparseGatedMLP(*sizes, config.hidden_act, build, sparsity=own.sparsity[index])
