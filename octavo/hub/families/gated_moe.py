"""AFMoE and Laguna, with experts and gates on what their attention yields: configuration parsing."""

from dataclasses import replace

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid, reject_values
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing, sparse_from
from octavo.hub.families.sparse import OutputGate, SparseFields, full_layers
from octavo.hub.model_config import ModelConfig

_MAX_HEADS = 1 << 16


def _afmoe(values: ConfigValues, config: ModelConfig) -> SparseFields:
    for key, only in (("score_func", "sigmoid"), ("route_norm", True), ("n_group", 1), ("num_expert_groups", 1)):
        if values.get(key) not in (None, only):
            raise invalid(key, values.get(key), repr(only))
    routing = parse_routing(values, score="sigmoid", renormalises=True)
    size, num_dense = values.count("moe_intermediate_size"), values.count("num_dense_layers", MAX_LAYERS, least=0)
    experts = ExpertFields(
        replace(routing, scale=values.number("route_scale"), is_corrected=True),
        size,
        tuple(index >= num_dense for index in range(config.num_layers)),
        shared_size=size * values.count("num_shared_experts", least=0),
        correction="expert_bias",
    )
    bias = values.flag("attention_bias")
    return SparseFields(
        experts,
        bias,
        bias,
        "heads",
        unrotated=full_layers(config),
        layer="sandwich",
        gate=OutputGate("gate_proj", "sigmoid", is_by_head=False),
        embedding_scale=config.hidden_size**0.5 if values.flag("mup_enabled") else None,
    )


def _laguna(values: ConfigValues, config: ModelConfig) -> SparseFields:
    reject_values(
        values, "moe_apply_router_weight_on_input", "moe_router_logit_softcapping", "swa_attention_sink_enabled"
    )
    if values.get("norm_topk_prob") is False:
        raise invalid("norm_topk_prob", False, "true")
    routing = parse_routing(values, score="sigmoid", renormalises=True)
    experts = ExpertFields(
        replace(routing, scale=values.number("moe_routed_scaling_factor"), is_corrected=True),
        values.count("moe_intermediate_size"),
        sparse_from(values, config),
        shared_size=values.count("shared_expert_intermediate_size"),
        correction="experts.e_score_correction_bias",
    )
    bias = values.flag("attention_bias")
    return SparseFields(
        experts,
        bias,
        bias,
        "heads",
        local_rope=parse_ropes(values)[1],
        gate=_laguna_gate(values),
        heads=_heads_by_layer(values, config),
    )


def _laguna_gate(values: ConfigValues) -> OutputGate:
    gating = values.get("gating")
    if gating not in (True, "per-head", "per-element"):
        raise invalid("gating", gating, "true, 'per-head' or 'per-element'")
    return OutputGate("g_proj", "softplus", is_by_head=gating != "per-element")


def _heads_by_layer(values: ConfigValues, config: ModelConfig) -> tuple[int, ...] | None:
    key = "num_attention_heads_per_layer"
    listed = values.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) != config.num_layers:
        raise invalid(key, listed, f"a list of {config.num_layers} counts")
    for heads in listed:
        if not isinstance(heads, int) or not 0 < heads <= _MAX_HEADS or heads % config.num_kv_heads:
            raise invalid(key, listed, f"a list of multiples of num_key_value_heads = {config.num_kv_heads}")
    return tuple(listed)


FAMILIES = {
    "AfmoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:AfmoeForCausalLM",
        model_type="afmoe",
        names={"sliding_window_pattern": "global_attn_every_n_layers"},
        defaults={
            "vocab_size": 200192,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "head_dim": 128,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-5,
            "sliding_window": 1024,
            "sliding_window_pattern": 4,
            "moe_intermediate_size": 1408,
            "num_dense_layers": 1,
            "num_experts_per_tok": 6,
            "num_experts": 64,
            "num_shared_experts": 2,
            "route_scale": 1.0,
        },
        parse_own=_afmoe,
    ),
    "LagunaForCausalLM": DecoderFamily(
        model="octavo.models.sparse:LagunaForCausalLM",
        model_type="laguna",
        defaults={
            "vocab_size": 100352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
            },
            "sliding_window": 512,
            "sliding_window_pattern": 1,  # no layer slides unless layer_types says so
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 8,
            "num_experts": 256,
            "moe_routed_scaling_factor": 1.0,
            "first_k_dense_replace": 1,
            "gating": True,
        },
        parse_own=_laguna,
    ),
}
