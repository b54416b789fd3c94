"""The configuration of decoders with layer norms, from GPT-2 to Command R."""

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["affine", "no_bias", "plain", "unit_offset"]
"""Layer norms with weight and bias, without bias, without both, and with a weight stored as the difference from one."""

QKVStorage = Literal["separate", "fused", "by_head", "by_shard"]
"""How checkpoints have the projections of queries, keys and values: as three layers; or as one with all queries before
all keys before all values, with each key/value head's queries, key and value together, or in four shards (CodeGen)."""

Positions = Literal["rotary", "learned", "alibi"]
"""Position embedding: rotary, one learned vector per position, or a penalty for distance (ALiBi)."""

HeadNormKind = Literal["none", "shared", "by_head", "listed"]
"""Norms of each head's query and key: none, a layer norm for all heads, or one without bias for each head, whose
weights are stored together or one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFields:
    """The variant of each part of a layer, and which parts have biases.

    Attributes:
        norm: kind of all norms but those of heads.
        is_parallel: whether attention and feed-forward part of a layer both take the layer's input.
        has_shared_norm: whether parallel parts take it through the same norm.
        norms_after: whether a layer norms the sum of its input and each part's result, rather than each part's input.
        has_final_norm: whether a norm follows the last layer.
        is_gated: whether the feed-forward part has a gate.
        is_transposed: whether linear layers are stored as ``[in, out]``.
        qkv: storage of the projections of queries, keys and values.
        head_norm: norms of each head's query and key.
        clip_qkv: bound of the values of queries, keys and values; None for none.
        positions: kind of position embedding.
        position_offset: rows of the table of learned positions before the first position's.
        alibi_bias_max: exponent of two of ALiBi's smallest slope, negated.
        is_alibi_scaled: whether the penalty for distance is multiplied by the scale of the scores.
        is_interleaved: whether rotary pairs are ``(2i, 2i + 1)``.
        has_rope_in_full_layers: whether layers without a window have positions, too.
        attention_scale: factor on attention scores; None is one over the root of the head size.
        is_scaled_by_layer: whether layer ``i``'s scores, counted from 1, are also divided by ``i``.
        has_embedding_norm: whether embeddings are normed before the first layer.
        logit_scale: factor on logits.
    """

    norm: NormKind = "affine"
    is_parallel: bool = False
    has_shared_norm: bool = False
    norms_after: bool = False
    has_final_norm: bool = True
    is_gated: bool = False
    is_transposed: bool = False
    qkv: QKVStorage = "separate"
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = False
    head_norm: HeadNormKind = "none"
    clip_qkv: float | None = None
    positions: Positions = "rotary"
    position_offset: int = 0
    alibi_bias_max: float = 8.0
    is_alibi_scaled: bool = False
    is_interleaved: bool = False
    has_rope_in_full_layers: bool = True
    attention_scale: float | None = None
    is_scaled_by_layer: bool = False
    has_embedding_norm: bool = False
    logit_scale: float | None = None
