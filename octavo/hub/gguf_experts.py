"""GGUF's architectures with experts, and their metadata."""

from typing import Any

from octavo.hub.gguf_families import GRANITE_SCALES, QK_NORM, GGUFFamily, own_value
from octavo.tokenization.gguf_file import GGUFFile

EXPERT_KEYS = {
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
    is_v3 = own_value(file, "expert_gating_func") == _SIGMOID or bias in file.tensors
    raw["architectures"] = ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"]
    for key, value in {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False}.items():
        raw.setdefault(key, value)
    raw["topk_method"] = "noaux_tc" if is_v3 else "greedy" if raw["n_group"] == 1 else "group_limited_greedy"
    raw["q_lora_rank"] = own_value(file, "attention.q_lora_rank")
    key_size, value_size = (
        own_value(file, f"attention.{name}_length_mla") or own_value(file, f"attention.{name}_length")
        for name in ("key", "value")
    )
    if isinstance(key_size, int) and isinstance(raw.get("head_dim"), int):
        raw["qk_nope_head_dim"] = key_size - raw["head_dim"]
    raw["v_head_dim"] = value_size
    weight = own_value(file, "rope.scaling.yarn_log_multiplier")
    if raw["rope_scaling"] is not None and isinstance(weight, float):
        raw["rope_scaling"] |= {"mscale": 10 * weight, "mscale_all_dim": 10 * weight}


def _dots1(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["sliding_window"] = None


def _gpt_oss(raw: dict[str, Any], file: GGUFFile) -> None:
    if raw["rope_scaling"] is not None:
        raw["rope_scaling"]["truncate"] = False


def _granite(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["shared_intermediate_size"] = raw.get("shared_expert_intermediate_size", 0)


def _qwen2(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["qkv_bias"] = raw["attention_bias"]


def _qwen3(raw: dict[str, Any], file: GGUFFile) -> None:
    """No file says that weights are divided by their sum, which all of these models do."""
    raw["norm_topk_prob"] = True


_EXPERT_SIZE = {"intermediate_size": "expert_feed_forward_length"}
EXPERT_FAMILIES: dict[str, GGUFFamily] = {
    "deepseek2": GGUFFamily(
        "DeepseekV2ForCausalLM",
        keys={"kv_lora_rank": "attention.kv_lora_rank", "head_dim": "rope.dimension_count"},
        tensors={"has_kv_by_head": "blk.0.attn_k_b.weight"},
        adjust=_deepseek2,
    ),
    "dots1": GGUFFamily("Dots1ForCausalLM", adjust=_dots1),
    "ernie4_5-moe": GGUFFamily(
        "Ernie4_5_MoeForCausalLM",
        keys={
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_num_shared_experts": "expert_shared_count",
        },
    ),
    "glm4moe": GGUFFamily("Glm4MoeForCausalLM", tensors=QK_NORM, has_rotary_size=True),
    "gpt-oss": GGUFFamily("GptOssForCausalLM", keys=_EXPERT_SIZE, adjust=_gpt_oss),
    "granitemoe": GGUFFamily("GraniteMoeForCausalLM", keys=GRANITE_SCALES, adjust=_granite),
    "minimax-m2": GGUFFamily("MiniMaxM2ForCausalLM", keys=_EXPERT_SIZE, has_rotary_size=True),
    "olmoe": GGUFFamily("OlmoeForCausalLM"),
    "qwen2moe": GGUFFamily("Qwen2MoeForCausalLM", adjust=_qwen2),
    "qwen3moe": GGUFFamily("Qwen3MoeForCausalLM", adjust=_qwen3),
}
"""By GGUF's name of the architecture. Mixtral is ``llama`` there, with experts."""
