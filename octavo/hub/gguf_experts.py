"""The metadata of GGUF files with experts."""

from collections.abc import Callable
from typing import Any

from octavo.hub.gguf_families import copy_keys, set_granite_scales, set_partial_rotary_factor
from octavo.tokenization.gguf_file import GGUFFile

ARCHITECTURES = {
    "deepseek2": "DeepseekV2ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
    "glm4moe": "Glm4MoeForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "minimax-m2": "MiniMaxM2ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
"""GGUF's name of an architecture → Hugging Face's. Mixtral is ``llama`` there, with experts."""

KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
"""GGUF's keys without the architecture → Hugging Face's."""

_SIGMOID = 2


def _deepseek2(raw: dict[str, Any], file: GGUFFile) -> None:
    """DeepSeek V2 and V3 share a name in GGUF, as do Kimi K2 and GLM-4.7-Flash, which are V3 in all but sizes.

    Files name a sigmoid as the score of experts; the oldest of V2 say nothing. Keys and values are stored by head in
    newer files, and their sizes under keys of their own, since the usual ones tell what is cached there.
    """
    bias = "blk.{}.exp_probs_b.bias".format(raw.get("first_k_dense_replace", 0))
    is_v3 = file.metadata.get("deepseek2.expert_gating_func") == _SIGMOID or bias in file.tensors
    raw["architectures"] = ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"]
    for key, value in {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False}.items():
        raw.setdefault(key, value)
    raw["topk_method"] = "noaux_tc" if is_v3 else "greedy" if raw["n_group"] == 1 else "group_limited_greedy"
    raw["q_lora_rank"] = file.metadata.get("deepseek2.attention.q_lora_rank")
    raw["has_kv_by_head"] = "blk.0.attn_k_b.weight" in file.tensors
    copy_keys(raw, file, "deepseek2", kv_lora_rank="attention.kv_lora_rank", head_dim="rope.dimension_count")
    plain = copy_keys({}, file, "deepseek2", key="attention.key_length", value="attention.value_length")
    sizes = copy_keys(plain, file, "deepseek2", key="attention.key_length_mla", value="attention.value_length_mla")
    if isinstance(sizes.get("key"), int) and isinstance(raw.get("head_dim"), int):
        raw["qk_nope_head_dim"] = sizes["key"] - raw["head_dim"]
    raw["v_head_dim"] = sizes.get("value")
    weight = file.metadata.get("deepseek2.rope.scaling.yarn_log_multiplier")
    if raw["rope_scaling"] is not None and isinstance(weight, float):
        raw["rope_scaling"] |= {"mscale": 10 * weight, "mscale_all_dim": 10 * weight}


def _dots1(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["sliding_window"] = None


def _ernie(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(
        raw,
        file,
        "ernie4_5-moe",
        moe_layer_interval="interleave_moe_layer_step",
        moe_layer_start_index="leading_dense_block_count",
        moe_num_shared_experts="expert_shared_count",
    )


def _glm4(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    set_partial_rotary_factor(raw, file, "glm4moe")


def _gpt_oss(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "gpt-oss", intermediate_size="expert_feed_forward_length")
    if raw["rope_scaling"] is not None:
        raw["rope_scaling"]["truncate"] = False


def _granite(raw: dict[str, Any], file: GGUFFile) -> None:
    set_granite_scales(raw, file, "granitemoe")
    raw["shared_intermediate_size"] = raw.get("shared_expert_intermediate_size", 0)


def _minimax(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "minimax-m2", intermediate_size="expert_feed_forward_length")
    set_partial_rotary_factor(raw, file, "minimax-m2")


def _qwen2(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["qkv_bias"] = raw["attention_bias"]


def _qwen3(raw: dict[str, Any], file: GGUFFile) -> None:
    """No file says that weights are divided by their sum, which all of these models do."""
    raw["norm_topk_prob"] = True


ADJUSTMENTS: dict[str, Callable[[dict[str, Any], GGUFFile], None]] = {
    "deepseek2": _deepseek2,
    "dots1": _dots1,
    "ernie4_5-moe": _ernie,
    "glm4moe": _glm4,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite,
    "minimax-m2": _minimax,
    "qwen2moe": _qwen2,
    "qwen3moe": _qwen3,
}
"""See :data:`octavo.hub.gguf_families.ADJUSTMENTS`."""
