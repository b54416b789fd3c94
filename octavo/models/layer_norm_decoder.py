"""Decoders whose layers have layer norms: from GPT-2 to Command R. Families are data of one class.

What a layer is made of stands in :class:`octavo.hub.block_fields.BlockFields`, which each family's reading rules in
``hub/families`` make of a configuration. Families whose checkpoints have other names derive a class that lists them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import nn

from octavo.hub.block_fields import BlockFields, NormKind, QKVStorage
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.layers.activation import activation_of
from octavo.layers.adjusted_attention import ClippedAttention, LayerNormAttention
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.embedding import PositionEmbedding
from octavo.layers.head_terms import AttentionTerms, alibi_slopes
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.norm import LayerNorm, NoNorm, Norm, UnitOffsetLayerNorm
from octavo.layers.older_layers import NormAfterLayer, ParallelLayer, TwoNormParallelLayer
from octavo.layers.qkv import QKVOrder, by_head, by_shard
from octavo.layers.rotary import MAIN_ROPE, NO_ROPE
from octavo.models.base import DecoderLM

_NORMS: Mapping[NormKind, Callable[[int, float], Norm]] = {
    "affine": LayerNorm,
    "no_bias": partial(LayerNorm, has_bias=False),
    "plain": partial(LayerNorm, has_weight=False, has_bias=False),
    "unit_offset": UnitOffsetLayerNorm,
}
_ORDERS: Mapping[QKVStorage, QKVOrder] = {"by_head": by_head, "by_shard": by_shard}


class LayerNormDecoder(DecoderLM):
    """A decoder made of the parts that its configuration names."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(BlockFields)
        norm_of = _NORMS[own.norm]
        norm = partial(norm_of, config.hidden_size, config.rms_norm_eps)
        positions = None
        if own.positions == "learned":
            positions = PositionEmbedding(
                config.max_position_embeddings, config.hidden_size, max_positions, offset=own.position_offset
            )

        def layer(index: int, build: Build) -> nn.Module:
            attention = _attention(config, own, index, build.at("self_attn"))
            return _layer_class(own)(attention, _feed_forward(config, own, build.at("mlp")), norm)

        super().__init__(
            config,
            replace(build, is_transposed=own.is_transposed),
            layer,
            max_positions,
            norm=norm_of if own.has_final_norm else _no_norm,
            positions=positions,
            embedding_norm=norm() if own.has_embedding_norm else None,
            ropes=_ropes(config, own),
            head_bias=own.head_bias,
            logit_scale=own.logit_scale,
        )


def _layer_class(own: BlockFields) -> Callable[[nn.Module, nn.Module, Callable[[], Norm]], nn.Module]:
    """What makes a layer of an attention module, a feed-forward module and norms."""
    if own.norms_after:
        return NormAfterLayer
    if not own.is_parallel:
        return PreNormLayer
    return ParallelLayer if own.has_shared_norm else TwoNormParallelLayer


def _ropes(config: ModelConfig, own: BlockFields) -> dict[str, RopeConfig | None]:
    """The rotary tables that layers use, by name."""
    names = {_rope_name(config, own, layer) for layer in range(config.num_layers)}
    return {name: None if name == NO_ROPE else config.rope for name in sorted(names)}


def _rope_name(config: ModelConfig, own: BlockFields, layer: int) -> str:
    is_left_out = config.layer_types[layer] == "full_attention" and not own.has_rope_in_full_layers
    return NO_ROPE if own.positions != "rotary" or is_left_out else MAIN_ROPE


def _attention(config: ModelConfig, own: BlockFields, layer: int, build: Build) -> RotaryAttention:
    scale = config.head_dim**-0.5 if own.attention_scale is None else own.attention_scale
    terms = None
    if own.positions == "alibi":
        slopes = alibi_slopes(config.num_heads, own.alibi_bias_max)
        terms = AttentionTerms(config.num_heads, build, slopes=slopes * scale if own.is_alibi_scaled else slopes)
    make: Callable[..., RotaryAttention] = RotaryAttention
    if own.clip_qkv is not None:
        make = partial(ClippedAttention, bound=own.clip_qkv)
    elif own.head_norm != "none":
        make = partial(LayerNormAttention, kind=own.head_norm)
    return make(
        config,
        layer,
        build,
        rope=_rope_name(config, own, layer),
        qkv_bias=own.qkv_bias,
        output_bias=own.output_bias,
        scale=scale / (layer + 1) if own.is_scaled_by_layer else scale,
        is_fused=own.qkv != "separate",
        fused_order=_ORDERS.get(own.qkv),
        is_interleaved=own.is_interleaved,
        terms=terms,
    )


def _feed_forward(config: ModelConfig, own: BlockFields, build: Build) -> nn.Module:
    sizes = config.hidden_size, config.intermediate_size
    if own.is_gated:
        return GatedMLP(*sizes, config.hidden_act, build, bias=own.mlp_bias)
    return MLP(*sizes, activation_of(config.hidden_act), build, bias=own.mlp_bias)


def _no_norm(size: int, eps: float) -> Norm:
    return NoNorm()
