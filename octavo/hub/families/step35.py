"""Step 3.5: windows with more heads, gated attention, experts whose gates are bounded in some layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import ConfigValues, invalid, positive_number, reject_flags, require_values
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing, sparse_from
from octavo.hub.families.sparse import OutputGate, SparseFields
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import ExpertSpec, StackedParts

_FULL, _SLIDING = "full_attention", "sliding_attention"
_BY_LAYER = ("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors", "use_rope_layers")
_LIMITS, _SHARED_LIMITS = "swiglu_limits", "swiglu_limits_shared"
_ONLY: dict[str, Any] = {
    "hidden_act": "silu",
    "moe_router_activation": "sigmoid",
    "att_impl_type": "GQA",
    "zero_centered": True,
    "use_qk_norm": True,
    "use_moe_router_bias": True,
    "yarn_only_types": [_FULL],
}
"""Values of keys of which only one is implemented."""


def _derive(values: ConfigValues) -> dict[str, Any]:
    """The usual keys, from lists by layer that go on with the layers that predict further tokens."""
    num_layers = values.count("num_hidden_layers")
    own = {key: values.get(key)[:num_layers] for key in _BY_LAYER if isinstance(values.get(key), list)}
    derived: dict[str, Any] = {key: own[key] for key in ("layer_types", "mlp_layer_types") if key in own}
    listed = values.get("moe_layers_enum")
    if listed is not None:
        sparse = _numbers("moe_layers_enum", listed)
        derived["mlp_layer_types"] = ["sparse" if index in sparse else "dense" for index in range(num_layers)]
    if not any(kind in values.mapping("rope_parameters") for kind in (_FULL, _SLIDING)):
        kinds = derived.get("layer_types") or [_FULL] * num_layers
        rotary = {
            "rope_theta": own.get("rope_theta", values.get("rope_theta")),
            "partial_rotary_factor": own.get("partial_rotary_factors"),
        }
        derived["rope_parameters"] = {
            kind: {key: _of_kind(key, value, kinds, kind) for key, value in rotary.items() if value is not None}
            for kind in (_FULL, _SLIDING)
        }
        derived["rope_theta"] = 10_000.0  # each kind has its own
    other = values.mapping("attention_other_setting")
    for key in ("num_attention_groups", "head_dim"):
        if other.get(key) not in (None, values.get(key)):
            raise invalid(f"attention_other_setting[{key!r}]", other[key], f"that of other layers, {values.get(key)}")
    if other:
        derived["num_sliding_attention_heads"] = other.get("num_attention_heads")
    for key in ("num_key_value_heads", "num_experts", "num_experts_per_tok"):
        derived[key] = next((values.get(name) for name in _NAMES[key] if values.get(name) is not None), None)
    return derived


_NAMES = {
    "num_key_value_heads": ("num_attention_groups", "num_key_value_heads"),
    "num_experts": ("moe_num_experts", "n_routed_experts"),
    "num_experts_per_tok": ("moe_top_k", "num_experts_per_tok"),
}
"""The usual names of keys → those that published configurations have, and transformers'."""


def _numbers(key: str, listed: Any) -> set[int]:
    """Layers, from a list or from numbers with commas between."""
    items = listed.split(",") if isinstance(listed, str) else listed
    try:
        return {int(item) for item in items}
    except (TypeError, ValueError) as error:
        raise invalid(key, listed, "numbers of layers") from error


def _of_kind(key: str, value: Any, kinds: Sequence[Any], kind: str) -> Any:
    """The value of all layers of a kind, from one value or a list by layer."""
    if not isinstance(value, list):
        return value
    found = [own for own, of in zip(value, kinds, strict=False) if of == kind]
    if len(value) < len(kinds) or any(own != found[0] for own in found):
        raise invalid(key, value, f"one value for all layers of the type {kind}")
    return found[0] if found else None


def _step35(values: ConfigValues, config: ModelConfig) -> SparseFields:
    require_values(values, _ONLY | {"query_pre_attn_scalar": config.head_dim})
    reject_flags(values, "sink", "mlp_bias")
    renormalises = values.get("norm_expert_weight") is not False
    routing = parse_routing(values, score="sigmoid", renormalises=renormalises)
    experts = ExpertFields(
        replace(routing, scale=values.number("moe_router_scaling_factor"), is_corrected=True),
        values.count("moe_intermediate_size"),
        sparse_from(values, config),
        shared_size=values.count("share_expert_dim"),
        storage=StackedParts("stacks.gate_proj", "stacks.up_proj", "stacks.down_proj"),
        correction="router_bias",
    )
    bounded = {
        index: replace(experts, spec=_bounded(limit), shared_spec=_bounded(shared))
        for index, (limit, shared) in enumerate(
            zip(_limits(values, _LIMITS, config), _limits(values, _SHARED_LIMITS, config), strict=True)
        )
        if limit or shared
    }
    bias = values.flag("attention_bias")
    rotated = values.get("use_rope_layers") or []
    return SparseFields(
        experts,
        bias,
        bias,
        "heads",
        unrotated=frozenset(index for index, has_rope in enumerate(rotated[: config.num_layers]) if not has_rope),
        local_rope=parse_ropes(values)[1],
        norm="offset rms",
        gate=None if values.get("use_head_wise_attn_gate") is False else OutputGate("g_proj", "sigmoid", True),
        heads=_heads(values, config),
        other_experts=bounded,
    )


def _limits(values: ConfigValues, key: str, config: ModelConfig) -> list[float]:
    """The bound of each layer, 0 for none."""
    listed = values.get(key)
    if listed is None:
        return [0.0] * config.num_layers
    if not isinstance(listed, list) or len(listed) < config.num_layers:
        raise invalid(key, listed, f"a list with a number for each of {config.num_layers} layers")
    return [positive_number(key, limit) if limit else 0.0 for limit in listed[: config.num_layers]]


def _bounded(limit: float) -> ExpertSpec | None:
    return ExpertSpec("swiglu_step", limit=limit) if limit else None


def _heads(values: ConfigValues, config: ModelConfig) -> tuple[int, ...] | None:
    heads = values.optional_count("num_sliding_attention_heads")
    if heads is None:
        return None
    if heads % config.num_kv_heads:
        wanted = f"a multiple of num_key_value_heads = {config.num_kv_heads}"
        raise invalid("num_sliding_attention_heads", heads, wanted)
    return tuple(heads if kind == _SLIDING else config.num_heads for kind in config.layer_types)


FAMILIES = {
    "Step3p5ForCausalLM": DecoderFamily(
        model="octavo.models.sparse:Step3p5ForCausalLM",
        model_type="step3p5",
        defaults={
            "vocab_size": 128815,
            "hidden_size": 4096,
            "intermediate_size": 11264,
            "num_hidden_layers": 45,
            "num_attention_heads": 64,
            "num_attention_groups": 8,
            "head_dim": 128,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-5,
            "sliding_window_pattern": 1,  # no layer slides unless layer_types says so
            "moe_intermediate_size": 1280,
            "share_expert_dim": 1280,
            "moe_num_experts": 288,
            "moe_top_k": 8,
            "moe_router_scaling_factor": 1.0,
            "first_k_dense_replace": 3,
        },
        derive=_derive,
        parse_own=_step35,
    ),
}
