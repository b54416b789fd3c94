"""Mixtral, and models with its names: MiniMax-M2, PhiMoE: configuration parsing."""

from dataclasses import replace
from typing import Any

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.sparse import SparseFields, uniform_experts
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import SeparateExperts


def _mixtral(values: ConfigValues, config: ModelConfig) -> SparseFields:
    return SparseFields(uniform_experts(values, config, renormalises=True, storage=SeparateExperts("w1", "w3", "w2")))


def _minimax(values: ConfigValues, config: ModelConfig) -> SparseFields:
    experts = uniform_experts(values, config, renormalises=True, storage=SeparateExperts("w1", "w3", "w2"))
    routing = replace(experts.routing, score="sigmoid", is_corrected=True)
    experts = replace(experts, routing=routing, correction="e_score_correction_bias")
    return SparseFields(experts, query_norms="projections")


def _phi(values: ConfigValues, config: ModelConfig) -> SparseFields:
    experts = uniform_experts(values, config, renormalises=False, storage=SeparateExperts("w1", "w3", "w2"))
    routing = replace(experts.routing, score="sparsemixer", jitter=values.number("router_jitter_noise"))
    bias, head_bias = values.flag("attention_bias"), values.flag("lm_head_bias")
    return SparseFields(replace(experts, routing=routing), bias, bias, norm="layer", head_bias=head_bias)


def _rotary_share(values: ConfigValues) -> dict[str, Any]:
    """MiniMax's configurations have the number of rotating values in place of their share."""
    if values.get("rotary_dim") is None or values.get("partial_rotary_factor") is not None:
        return {}
    return {"partial_rotary_factor": values.count("rotary_dim") / values.count("head_dim")}


FAMILIES = {
    "MixtralForCausalLM": DecoderFamily(
        model="octavo.models.sparse:MixtralForCausalLM",
        model_type="mixtral",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "num_experts_per_tok": 2,
            "num_experts": 8,
            "eos_token_id": 2,
        },
        parse_own=_mixtral,
    ),
    "MiniMaxM2ForCausalLM": DecoderFamily(
        model="octavo.models.sparse:MixtralForCausalLM",
        model_type="minimax_m2",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5_000_000.0,
            "num_experts_per_tok": 8,
            "num_experts": 256,
            "eos_token_id": 200020,
        },
        fixed=NO_WINDOW,
        derive=_rotary_share,
        parse_own=_minimax,
    ),
    "PhimoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:MixtralForCausalLM",
        model_type="phimoe",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 32064,
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "num_experts_per_tok": 2,
            "num_experts": 16,
            "router_jitter_noise": 0.01,
            "eos_token_id": 2,
        },
        parse_own=_phi,
    ),
}
FAMILIES["PhiMoEForCausalLM"] = FAMILIES["PhimoeForCausalLM"]  # as the authors' own configurations spell it
