"""DeepSeek-V2: configuration parsing."""

import math
from dataclasses import dataclass

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, wrong
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class DeepseekV2Fields:
    """DeepSeek-V2's own quantities, with Hugging Face's names.

    Attributes:
        n_group, topk_group: groups of experts, and from how many of them a token's experts are; 1 without groups.
        score_scale: factor on attention scores.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    first_k_dense_replace: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    score_scale: float
    attention_bias: bool
    mlp_bias: bool


def _parse_own(values: ConfigValues, config: ModelConfig) -> DeepseekV2Fields:
    num_experts = values.count("n_routed_experts")
    num_chosen = values.count("num_experts_per_tok", limit=num_experts)
    plain_dim = values.count("qk_nope_head_dim")
    num_groups, num_open = _groups(values, num_experts, num_chosen)
    return DeepseekV2Fields(
        q_lora_rank=values.optional_count("q_lora_rank"),
        kv_lora_rank=values.count("kv_lora_rank"),
        qk_nope_head_dim=plain_dim,
        v_head_dim=values.count("v_head_dim"),
        first_k_dense_replace=values.count("first_k_dense_replace", least=0),
        n_routed_experts=num_experts,
        n_shared_experts=values.count("n_shared_experts"),
        num_experts_per_tok=num_chosen,
        moe_intermediate_size=values.count("moe_intermediate_size"),
        n_group=num_groups,
        topk_group=num_open,
        routed_scaling_factor=values.number("routed_scaling_factor"),
        score_scale=(plain_dim + config.head_dim) ** -0.5 * _magnitude(config.rope) ** 2,
        attention_bias=values.flag("attention_bias"),
        mlp_bias=values.flag("mlp_bias"),
    )


def _groups(values: ConfigValues, num_experts: int, num_chosen: int) -> tuple[int, int]:
    """Groups of experts, and from how many of them a token's experts are chosen."""
    method = values.text("topk_method")
    if method == "greedy":
        return 1, 1
    if method != "group_limited_greedy":
        raise UnsupportedModelError(f"Experts are chosen by topk_method {method!r}, which is not supported.")
    num_groups = values.count("n_group")
    num_open = values.count("topk_group", limit=num_groups)
    if num_experts % num_groups or num_chosen > num_open * (num_experts // num_groups):
        raise wrong("n_group", num_groups, f"a division of {num_experts} experts from which {num_chosen} can be chosen")
    return num_groups, num_open


def _magnitude(rope: RopeConfig) -> float:
    """YaRN's factor on queries and keys that is not part of the rotary tables (arXiv:2309.00071)."""
    weight = rope.params.get("mscale_all_dim") or 0
    factor = rope.params.get("factor") or 1
    return 0.1 * float(weight) * math.log(float(factor)) + 1.0 if weight and float(factor) > 1 else 1.0


FAMILIES = {
    "DeepseekV2ForCausalLM": DecoderFamily(
        model="octavo.models.deepseek_v2:DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        names={"head_dim": "qk_rope_head_dim"},
        defaults={
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "head_dim": 64,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "first_k_dense_replace": 0,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        fixed={"num_key_value_heads": None, "sliding_window": None, "layer_types": None},
        parse_own=_parse_own,
    ),
}
