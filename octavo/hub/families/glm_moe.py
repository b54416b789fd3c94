"""GLM-4.5, and other models with DeepSeek-V3's experts: dots1, EXAONE, Solar Open: configuration parsing."""

from dataclasses import replace

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.sparse import QueryNorms, SparseFields, corrected_experts, full_layers
from octavo.hub.model_config import ModelConfig


def _glm4(values: ConfigValues, config: ModelConfig) -> SparseFields:
    norms: QueryNorms = "heads" if values.flag("use_qk_norm") else "none"
    return SparseFields(corrected_experts(values, config), values.flag("attention_bias"), query_norms=norms)


def _dots(values: ConfigValues, config: ModelConfig) -> SparseFields:
    bias = values.flag("attention_bias")
    return SparseFields(corrected_experts(values, config), bias, bias, "heads")


def _exaone(values: ConfigValues, config: ModelConfig) -> SparseFields:
    experts = replace(corrected_experts(values, config), correction="e_score_correction_bias")
    unrotated = full_layers(config) if config.sliding_window is not None else frozenset()
    return SparseFields(experts, query_norms="heads", unrotated=unrotated)


def _solar(values: ConfigValues, config: ModelConfig) -> SparseFields:
    return SparseFields(corrected_experts(values, config), qkv_bias=values.flag("attention_bias"))


FAMILIES = {
    "Glm4MoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="glm4_moe",
        names={"num_experts": "n_routed_experts"},
        defaults={
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "num_experts": 128,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        fixed=NO_WINDOW,
        parse_own=_glm4,
    ),
    "Dots1ForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="dots1",
        names={"num_experts": "n_routed_experts"},
        defaults={
            "vocab_size": 152064,
            "hidden_size": 4608,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "sliding_window": 4096,
            "max_window_layers": 62,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
        },
        parse_own=_dots,
    ),
    "ExaoneMoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="exaone_moe",
        names={"n_shared_experts": "num_shared_experts"},
        defaults={
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "moe_intermediate_size": 1024,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "num_experts": 64,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "eos_token_id": 53,
        },
        parse_own=_exaone,
    ),
    "SolarOpenForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="solar_open",
        names={"num_experts": "n_routed_experts"},
        defaults={
            "vocab_size": 196608,
            "hidden_size": 4096,
            "intermediate_size": 1280,  # there are no layers without experts
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "moe_intermediate_size": 1280,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "num_experts": 128,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
        fixed=NO_WINDOW | {"mlp_layer_types": None, "first_k_dense_replace": 0},
        parse_own=_solar,
    ),
}
FAMILIES["ExaoneMoEForCausalLM"] = FAMILIES["ExaoneMoeForCausalLM"]  # as the authors' own configurations spell it
