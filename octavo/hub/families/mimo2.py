"""MiMo-V2-Flash: configuration parsing."""

from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_corrected_routing, sparse_from
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class Mimo2Fields:
    """MiMo-V2-Flash's own quantities.

    Attributes:
        value_dim: channels of a head's value.
        value_scale: factor on values.
        local_rope: of sliding-window layers.
    """

    experts: ExpertFields
    value_dim: int
    value_scale: float
    qkv_bias: bool
    local_rope: RopeConfig


def _mimo2(values: ConfigValues, config: ModelConfig) -> Mimo2Fields:
    _check_fixed(values, config)
    value_dim = values.count("v_head_dim")
    if value_dim > config.head_dim:
        raise invalid("v_head_dim", value_dim, f"at most head_dim = {config.head_dim}")
    local_rope = parse_ropes(values)[1]
    return Mimo2Fields(
        ExpertFields(
            parse_corrected_routing(values), values.count("moe_intermediate_size"), sparse_from(values, config)
        ),
        value_dim,
        values.optional_number("attention_value_scale") or 1.0,
        values.flag("attention_bias"),
        config.rope if local_rope is None else local_rope,
    )


def _check_fixed(values: ConfigValues, config: ModelConfig) -> None:
    """Check what published configurations spell out and the family's code takes for granted."""
    for key, only in (
        ("swa_num_attention_heads", config.num_heads),
        ("swa_num_key_value_heads", 2 * config.num_kv_heads),
        ("swa_head_dim", config.head_dim),
        ("swa_v_head_dim", values.get("v_head_dim")),
        ("add_swa_attention_sink_bias", True),
        ("add_full_attention_sink_bias", False),
        ("n_shared_experts", 0),
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
    ):
        if values.get(key) not in (None, only):
            raise UnsupportedModelError(
                f"The model's configuration has {key} = {values.get(key)!r}; only {only!r} is supported."
            )


def _usual_keys(values: ConfigValues) -> dict[str, Any]:
    """What published configurations have under names or in forms of their own."""
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    keys: dict[str, Any] = {"routed_scaling_factor": values.optional_number("routed_scaling_factor") or 1.0}
    if values.get("layer_types") is None:
        full = [index == 0 or (index + 1) % 6 == 0 for index in range(num_layers)]
        pattern = _switches(values, "hybrid_layer_pattern", num_layers, [not is_full for is_full in full])
        keys["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    if values.get("mlp_layer_types") is None:
        sparse = _switches(values, "moe_layer_freq", num_layers, [index > 0 for index in range(num_layers)])
        keys["mlp_layer_types"] = ["sparse" if has_experts else "dense" for has_experts in sparse]
    if values.get("sliding_window_size") is not None:  # without the query's own token
        keys["sliding_window"] = values.count("sliding_window_size") + 1
    if "full_attention" not in values.mapping("rope_parameters"):
        share = values.number("partial_rotary_factor")
        bases = {"full_attention": "rope_theta", "sliding_attention": "swa_rope_theta"}
        keys["rope_parameters"] = {
            kind: {"rope_theta": values.number(base), "partial_rotary_factor": share} for kind, base in bases.items()
        }
    return keys


def _switches(values: ConfigValues, key: str, num_layers: int, usual: list[bool]) -> list[bool]:
    """A switch for each layer."""
    listed = values.get(key)
    if listed is None:
        return usual
    if not isinstance(listed, list) or len(listed) != num_layers or any(item not in (0, 1) for item in listed):
        raise invalid(key, listed, f"0 or 1 for each of {num_layers} layers")
    return [bool(item) for item in listed]


FAMILIES = {
    "MiMoV2FlashForCausalLM": DecoderFamily(
        model="octavo.models.mimo2:MiMoV2FlashForCausalLM",
        model_type="mimo_v2_flash",
        names={"num_experts": "n_routed_experts", "rms_norm_eps": "layernorm_epsilon"},
        defaults={
            "vocab_size": 152576,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 192,
            "v_head_dim": 128,
            "attention_value_scale": 0.707,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5_000_000.0,
            "swa_rope_theta": 10_000.0,
            "partial_rotary_factor": 0.334,
            "sliding_window": 129,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
        derive=_usual_keys,
        parse_own=_mimo2,
    ),
}
