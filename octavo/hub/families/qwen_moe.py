"""Qwen2-MoE and Qwen3-MoE, Mellum, Flint: configuration parsing."""

from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing, sparse_from
from octavo.hub.families.sparse import SparseFields, full_layers
from octavo.hub.model_config import ModelConfig


def _qwen2(values: ConfigValues, config: ModelConfig) -> SparseFields:
    if config.sliding_window is not None and values.get("layer_types") is None:
        raise UnsupportedModelError("The model's configuration has use_sliding_window, but no layer_types.")
    experts = ExpertFields(
        parse_routing(values),
        values.count("moe_intermediate_size"),
        _sparse_steps(values, config),
        shared_size=values.count("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )
    return SparseFields(experts, qkv_bias=values.flag("qkv_bias"))


def _qwen3(values: ConfigValues, config: ModelConfig) -> SparseFields:
    size = values.count("moe_intermediate_size")
    experts = ExpertFields(parse_routing(values), size, _sparse_steps(values, config))
    bias = values.flag("attention_bias")
    return SparseFields(experts, bias, bias, "heads")


def _mellum(values: ConfigValues, config: ModelConfig) -> SparseFields:
    size, bias = values.count("moe_intermediate_size"), values.flag("attention_bias")
    experts = ExpertFields(parse_routing(values), size, sparse_from(values, config))
    return SparseFields(experts, bias, bias, "heads", local_rope=parse_ropes(values)[1])


def _flint(values: ConfigValues, config: ModelConfig) -> SparseFields:
    bias = values.flag("attention_bias")
    experts = ExpertFields(
        parse_routing(values, score="sigmoid"),
        values.count("moe_intermediate_size"),
        _sparse_steps(values, config),
        shared_size=values.count("shared_expert_intermediate_size"),
    )
    return SparseFields(experts, bias, bias, "heads", unrotated=full_layers(config), has_sinks=True)


def _flint_layers(values: ConfigValues) -> dict[str, Any]:
    """Windows in most layers behind the second one, but not in the last."""
    keys: dict[str, Any] = {}
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    if values.get("layer_types") is None:
        full = {0, 1, num_layers - 1, *range(1, num_layers, 4)}
        keys["layer_types"] = ["full_attention" if i in full else "sliding_attention" for i in range(num_layers)]
    if values.get("mlp_only_layers") is None:
        keys["mlp_only_layers"] = [0, 1]
    return keys


def _sparse_steps(values: ConfigValues, config: ModelConfig) -> tuple[bool, ...]:
    """Every so many layers has experts, but for those that are listed."""
    interval = values.count("decoder_sparse_step")
    dense = values.get("mlp_only_layers") or ()
    return tuple(index not in dense and (index + 1) % interval == 0 for index in range(config.num_layers))


_QWEN: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
}

FAMILIES = {
    "Qwen2MoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        defaults={
            **_QWEN,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4,
            "num_experts": 60,
            "qkv_bias": True,
        },
        fixed={"max_window_layers": None},
        has_window_switch=True,
        parse_own=_qwen2,
    ),
    "Qwen3MoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="qwen3_moe",
        names={"num_experts": "num_local_experts"},
        defaults={
            **_QWEN,
            "intermediate_size": 6144,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_experts": 128,
        },
        fixed={"max_window_layers": None, "layer_types": None},
        has_window_switch=True,
        parse_own=_qwen3,
    ),
    "MellumForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="mellum",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 98304,
            "hidden_size": 2304,
            "intermediate_size": 7168,
            "num_hidden_layers": 28,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "full_attention": {"rope_theta": 500_000.0},
                "sliding_attention": {"rope_theta": 10_000.0},
            },
            "sliding_window": 1024,
            "sliding_window_pattern": 1,  # no layer slides unless layer_types says so
            "moe_intermediate_size": 896,
            "num_experts_per_tok": 8,
            "num_experts": 64,
            "norm_topk_prob": True,
            "first_k_dense_replace": 0,
        },
        parse_own=_mellum,
    ),
    "FlintForCausalLM": DecoderFamily(
        model="octavo.models.sparse:FlintForCausalLM",
        model_type="flint",
        defaults={
            **_QWEN,
            "vocab_size": 150144,
            "intermediate_size": 6144,
            "num_hidden_layers": 49,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "sliding_window": 513,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 1024,
            "num_experts_per_tok": 6,
            "num_experts": 256,
            "norm_topk_prob": True,
        },
        derive=_flint_layers,
        parse_own=_flint,
    ),
}
