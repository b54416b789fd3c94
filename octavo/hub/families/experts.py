"""What families with experts share: configuration parsing.

All of them call the number of experts ``num_experts``; :attr:`DecoderFamily.names` maps other names to it.
"""

from dataclasses import dataclass, field, replace

from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import ExpertSpec, ExpertStorage, Routing, Score, SeparateExperts

_LAYER_KINDS = ("dense", "sparse")


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """The feed-forward parts of a model with experts.

    Attributes:
        size: of an expert's intermediate vector.
        num_identity: so many of the experts among which tokens choose, the last ones, return what they get.
        is_sparse: per layer, whether it has experts.
        dense_size: as ``size``, of layers without experts; None for the configuration's ``intermediate_size``.
        shared_size: as ``size``, of the feed-forward layer that all tokens share; 0 if there is none.
        is_shared_fused: whether checkpoints have its first two projections as one.
        has_shared_gate: whether a sigmoid weights what that layer computes.
        output_scale: factor on the sum of what experts and that layer compute.
        storage: how checkpoints store experts.
        correction: the checkpoint's name of the bias in the choice of experts, beside the router's module.
        spec: what an expert computes; None for the configuration's activation.
        shared_spec: the same of feed-forward layers that are no experts.
        has_bias: whether the router and the experts' layers have biases.
        mlp_bias: the same of feed-forward layers that are no experts.
    """

    routing: Routing
    size: int
    is_sparse: tuple[bool, ...]
    dense_size: int | None = None
    shared_size: int = 0
    is_shared_fused: bool = False
    has_shared_gate: bool = False
    output_scale: float = 1.0
    storage: ExpertStorage = field(default_factory=SeparateExperts)
    correction: str = "gate.e_score_correction_bias"
    spec: ExpertSpec | None = None
    shared_spec: ExpertSpec | None = None
    has_bias: bool = False
    mlp_bias: bool = False
    num_identity: int = 0


def parse_routing(values: ConfigValues, *, score: Score = "softmax", renormalises: bool | None = None) -> Routing:
    """The choice of experts among all.

    Args:
        renormalises: None reads ``norm_topk_prob``.
    """
    num_experts = values.count("num_experts")
    num_chosen = values.count("num_experts_per_tok", limit=num_experts)
    renormalises = values.flag("norm_topk_prob") if renormalises is None else renormalises
    return Routing(num_experts, num_chosen, score, renormalises)


def parse_corrected_routing(values: ConfigValues) -> Routing:
    """DeepSeek-V3's choice: sigmoids with a correction, in groups ranked by their two best experts."""
    routing = replace(
        parse_routing(values, score="sigmoid"), scale=values.number("routed_scaling_factor"), is_corrected=True
    )
    return with_groups(values, routing, num_ranked=2)


def with_groups(values: ConfigValues, routing: Routing, *, num_ranked: int) -> Routing:
    """The choice in groups of experts.

    Args:
        num_ranked: see :attr:`Routing.num_ranked`.
    """
    num_groups = values.count("n_group")
    num_open = values.count("topk_group", limit=num_groups)
    group_size, rest = divmod(routing.num_experts, num_groups)
    if rest or routing.num_chosen > num_open * group_size or num_ranked > group_size:
        wanted = f"a division of {routing.num_experts} experts from which {routing.num_chosen} can be chosen"
        raise invalid("n_group", num_groups, wanted)
    return replace(routing, num_groups=num_groups, num_open_groups=num_open, num_ranked=num_ranked)


def sparse_from(values: ConfigValues, config: ModelConfig) -> tuple[bool, ...]:
    """Layers from ``first_k_dense_replace`` on have experts, or those that ``mlp_layer_types`` names."""
    kinds, num_layers = values.get("mlp_layer_types"), config.num_layers
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in _LAYER_KINDS for kind in kinds):
            raise invalid("mlp_layer_types", kinds, f"one of {', '.join(_LAYER_KINDS)} for each of {num_layers} layers")
        return tuple(kind == "sparse" for kind in kinds)
    if values.get("moe_layer_freq") not in (None, 1):
        raise invalid(
            "moe_layer_freq", values.get("moe_layer_freq"), "1: experts in every n-th layer are not supported"
        )
    first = values.count("first_k_dense_replace", least=0)
    return tuple(index >= first for index in range(num_layers))
