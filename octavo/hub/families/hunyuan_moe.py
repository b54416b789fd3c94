"""Hunyuan with experts: configuration parsing."""

from dataclasses import replace
from typing import Any

from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing, sparse_from
from octavo.hub.families.sparse import SparseFields, uniform_experts
from octavo.hub.model_config import ModelConfig


def _hunyuan(values: ConfigValues, config: ModelConfig) -> SparseFields:
    bias = values.flag("attention_bias")
    experts = replace(uniform_experts(values, config, renormalises=True), shared_size=config.intermediate_size)
    return SparseFields(experts, bias, bias, "rotated heads")


def _hy3(values: ConfigValues, config: ModelConfig) -> SparseFields:
    routing = replace(
        parse_routing(values, score="sigmoid", renormalises=True),
        scale=values.number("router_scaling_factor"),
        is_corrected=True,
    )
    size, bias = values.count("moe_intermediate_size"), values.flag("attention_bias")
    shared_size = size * values.count("num_shared_experts", least=0)
    experts = ExpertFields(
        routing,
        size,
        sparse_from(values, config),
        shared_size=shared_size,
        correction="expert_bias",
        mlp_bias=values.flag("mlp_bias"),
    )
    return SparseFields(experts, bias, bias, "heads")


def _common_counts(values: ConfigValues) -> dict[str, Any]:
    """Hunyuan's configurations may have counts for each layer, of which only equal ones are supported."""
    return {key: _common(key, values.get(key)) for key in ("num_experts", "num_experts_per_tok")}


def _common(key: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        raise invalid(key, value, "the same for all layers")
    return value[0]


FAMILIES = {
    "HunYuanMoEV1ForCausalLM": DecoderFamily(
        model="octavo.models.sparse:HunYuanMoEV1ForCausalLM",
        model_type="hunyuan_v1_moe",
        names={"num_experts_per_tok": "moe_topk"},
        defaults={
            "vocab_size": 290943,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 1,
            "num_experts": 1,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        derive=_common_counts,
        parse_own=_hunyuan,
    ),
    "HYV3ForCausalLM": DecoderFamily(
        model="octavo.models.sparse:HYV3ForCausalLM",
        model_type="hy_v3",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 120832,
            "hidden_size": 4096,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_experts": 192,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "router_scaling_factor": 2.826,
            "first_k_dense_replace": 1,
        },
        fixed=NO_WINDOW,
        parse_own=_hy3,
    ),
}
