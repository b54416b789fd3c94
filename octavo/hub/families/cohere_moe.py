"""Command A with experts: configuration parsing."""

from typing import Any

from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing, sparse_from
from octavo.hub.families.sparse import SparseFields, full_layers
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import Score


def _cohere(values: ConfigValues, config: ModelConfig) -> SparseFields:
    score: Score = "softmax" if _one_of(values, "expert_selection_fn", "softmax", "sigmoid") == "softmax" else "sigmoid"
    combination = _one_of(values, "shared_expert_combination_strategy", "sum", "average")
    shared_size = config.intermediate_size * values.count("num_shared_experts", least=0)
    sparse = sparse_from(values, config)
    routing = parse_routing(values, score=score, renormalises=score == "softmax" or values.flag("norm_topk_prob"))
    rotates_dense = values.count("prefix_dense_sliding_window_pattern") == 1
    bias = values.flag("attention_bias")
    return SparseFields(
        ExpertFields(
            routing,
            config.intermediate_size,
            sparse,
            dense_size=values.optional_count("prefix_dense_intermediate_size"),
            shared_size=shared_size,
            output_scale=0.5 if shared_size and combination == "average" else 1.0,
        ),
        bias,
        bias,
        is_interleaved=True,
        unrotated=frozenset(index for index in full_layers(config) if sparse[index] or not rotates_dense),
        layer="parallel",
        norm="rms" if values.flag("has_rms_norm") else "layer without bias",
        logit_scale=values.number("logit_scale"),
    )


def _one_of(values: ConfigValues, key: str, *known: str) -> str:
    value = values.text(key)
    if value not in known:
        raise invalid(key, value, f"one of {', '.join(known)}")
    return value


def _cohere_keys(values: ConfigValues) -> dict[str, Any]:
    """Which of the two norms Cohere's configurations name, and their windows, counted anew behind dense layers."""
    eps = values.optional_number("rms_norm_eps")
    keys: dict[str, Any] = {"has_rms_norm": eps is not None, "rms_norm_eps": eps or values.number("layer_norm_eps")}
    if values.get("layer_types") is None:
        num_layers = values.count("num_hidden_layers", MAX_LAYERS)
        num_dense = values.count("first_k_dense_replace", least=0)
        first, rest = values.count("prefix_dense_sliding_window_pattern"), values.count("sliding_window_pattern")
        is_full = [
            (index + 1) % first == 0 if index < num_dense else (index - num_dense + 1) % rest == 0
            for index in range(num_layers)
        ]
        keys["layer_types"] = ["full_attention" if full else "sliding_attention" for full in is_full]
    return keys


FAMILIES = {
    "Cohere2MoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="cohere2_moe",
        defaults={
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "head_dim": 128,
            "max_position_embeddings": 8192,
            "rms_norm_eps": None,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625,
            "tie_word_embeddings": True,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "num_experts_per_tok": 2,
            "num_experts": 8,
            "num_shared_experts": 0,
            "shared_expert_combination_strategy": "average",
            "expert_selection_fn": "softmax",
            "prefix_dense_sliding_window_pattern": 1,
            "first_k_dense_replace": 0,
            "norm_topk_prob": True,
            "eos_token_id": 255001,
        },
        derive=_cohere_keys,
        parse_own=_cohere,
    ),
}
