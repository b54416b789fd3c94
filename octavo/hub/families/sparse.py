"""What varies in decoders with experts whose layers are otherwise alike; a file beside this one for each family."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.hub.config_values import ConfigValues
from octavo.hub.families.experts import ExpertFields, parse_corrected_routing, parse_routing, sparse_from
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.records.experts import SeparateExperts

QueryNorms = Literal["none", "heads", "rotated heads", "projections"]
"""What is normed of queries and keys: nothing, each head before or after the rotation, or whole projections."""

LayerKind = Literal["pre-norm", "post-norm", "sandwich", "parallel"]
"""Norms on what a layer's two parts get, on what they return, on both, or one on what both get at the same time."""

NormKind = Literal["rms", "offset rms", "layer", "layer without bias"]
"""The weight of an ``offset rms`` norm is stored as the difference from one; norms of heads are such, too."""

_USUAL_NAMES = SeparateExperts()


@dataclass(frozen=True, slots=True)
class OutputGate:
    """What weights an attention's output before its projection: a function of what the attention gets.

    Attributes:
        name: of its linear layer in checkpoints.
        is_by_head: whether there is one weight for each head, instead of one for each of its channels.
    """

    name: str
    activation: Literal["sigmoid", "softplus"]
    is_by_head: bool


@dataclass(frozen=True, slots=True)
class SparseFields:
    """What varies in a decoder with experts.

    Attributes:
        qkv_bias, output_bias: whether the attention's projections have biases.
        is_interleaved: whether checkpoints have rotary pairs ``(2i, 2i + 1)``.
        unrotated: layers without rotary embedding.
        local_rope: of sliding-window layers; None if it is that of the others.
        head_bias: whether logits have a bias.
        logit_scale: factor on logits.
        has_fused_qkv: whether checkpoints have queries, keys and values as one layer.
        clip_qkv: bound of the values of queries, keys and values, without norms of them; None for none.
        gate: of the attention's output, without norms other than of heads before the rotation; None for none.
        has_sinks: whether the softmax has a learned logit for each head.
        heads: query heads of each layer; None for the configuration's in all layers.
        embedding_scale: factor on embeddings; None for none.
        other_experts: the feed-forward parts of layers that are not as ``experts`` says, by their index.
    """

    experts: ExpertFields
    qkv_bias: bool = False
    output_bias: bool = False
    query_norms: QueryNorms = "none"
    is_interleaved: bool = False
    unrotated: frozenset[int] = frozenset()
    local_rope: RopeConfig | None = None
    layer: LayerKind = "pre-norm"
    norm: NormKind = "rms"
    head_bias: bool = False
    logit_scale: float | None = None
    has_fused_qkv: bool = False
    clip_qkv: float | None = None
    gate: OutputGate | None = None
    has_sinks: bool = False
    heads: tuple[int, ...] | None = None
    embedding_scale: float | None = None
    other_experts: Mapping[int, ExpertFields] = field(default_factory=dict)


def uniform_experts(
    values: ConfigValues,
    config: ModelConfig,
    *,
    renormalises: bool | None = None,
    storage: SeparateExperts = _USUAL_NAMES,
) -> ExpertFields:
    """Experts in all layers, of the size that other models' feed-forward parts have."""
    routing = parse_routing(values, renormalises=renormalises)
    return ExpertFields(routing, config.intermediate_size, (True,) * config.num_layers, storage=storage)


def corrected_experts(values: ConfigValues, config: ModelConfig) -> ExpertFields:
    """DeepSeek-V3's feed-forward parts: experts from some layer on, and one that all tokens share."""
    size = values.count("moe_intermediate_size")
    shared_size = size * values.count("n_shared_experts", least=0)
    return ExpertFields(parse_corrected_routing(values), size, sparse_from(values, config), shared_size=shared_size)


def full_layers(config: ModelConfig) -> frozenset[int]:
    """The layers without a window."""
    return frozenset(index for index, kind in enumerate(config.layer_types) if kind == "full_attention")
