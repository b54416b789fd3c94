"""DeepSeek V2 and V3, and models of their architecture (latent attention): configuration parsing."""

import math
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, require_values
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_corrected_routing, parse_routing, sparse_from, with_groups
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.records.experts import Routing


@dataclass(frozen=True, slots=True)
class IndexerFields:
    """What chooses the tokens that a query attends to (DeepSeek-V3.2, arXiv:2512.02556).

    Attributes:
        num_chosen: tokens that a query attends to, at most.
        num_heads, head_dim: of the indexer's queries; its keys have one head.
        key_eps: epsilon of the keys' norm.
        rope_interleave: see :class:`DeepseekFields`.
        rotates_last: whether rotary embedding turns the last values of queries and keys, not the first.
        is_own: for each layer, whether it has an indexer. The others attend to what the layer before attends to.
    """

    num_chosen: int
    num_heads: int
    head_dim: int
    key_eps: float
    rope_interleave: bool
    rotates_last: bool
    is_own: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class DeepseekFields:
    """DeepSeek's own quantities, with Hugging Face's names.

    Attributes:
        score_scale: factor on attention scores.
        latent_scale: factor on the normed vectors that keys and values are made of.
        rope_interleave: whether rotary embedding turns neighbouring values, instead of those half a head apart.
        indexer: chooses the tokens that queries attend to; None for all.
        has_kv_by_head: whether checkpoints have the projections to keys and to values apart and by head, the former
            transposed.
    """

    experts: ExpertFields
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    score_scale: float
    rope_interleave: bool
    attention_bias: bool
    latent_scale: float = 1.0
    indexer: IndexerFields | None = None
    has_kv_by_head: bool = False


def _parse_v2(values: ConfigValues, config: ModelConfig) -> DeepseekFields:
    return _fields(values, config, _routing_of_v2(values))


def parse_v3(values: ConfigValues, config: ModelConfig) -> DeepseekFields:
    """What DeepSeek V3 adds to a configuration."""
    require_values(values, {"topk_method": "noaux_tc", "scoring_func": "sigmoid"})
    return _fields(values, config, parse_corrected_routing(values))


def _fields(values: ConfigValues, config: ModelConfig, routing: Routing) -> DeepseekFields:
    size = values.count("moe_intermediate_size")
    experts = ExpertFields(
        routing,
        size,
        sparse_from(values, config),
        shared_size=size * values.count("n_shared_experts", least=0),
        mlp_bias=values.flag("mlp_bias"),
    )
    return latent_fields(values, config, experts)


def latent_fields(values: ConfigValues, config: ModelConfig, experts: ExpertFields) -> DeepseekFields:
    """The sizes of latent attention beside a model's experts."""
    plain_dim = values.count("qk_nope_head_dim")
    return DeepseekFields(
        experts=experts,
        q_lora_rank=values.optional_count("q_lora_rank"),
        kv_lora_rank=values.count("kv_lora_rank"),
        qk_nope_head_dim=plain_dim,
        v_head_dim=values.count("v_head_dim"),
        score_scale=(plain_dim + config.head_dim) ** -0.5 * _magnitude(config.rope) ** 2,
        rope_interleave=values.flag("rope_interleave"),
        attention_bias=values.flag("attention_bias"),
        has_kv_by_head=values.flag("has_kv_by_head"),
    )


def _routing_of_v2(values: ConfigValues) -> Routing:
    routing = replace(parse_routing(values, renormalises=False), scale=values.number("routed_scaling_factor"))
    method = values.text("topk_method")
    if method == "greedy":
        return routing
    if method != "group_limited_greedy":
        raise UnsupportedModelError(f"Experts are chosen by topk_method {method!r}, which is not supported.")
    return with_groups(values, routing, num_ranked=1)


def _magnitude(rope: RopeConfig) -> float:
    """YaRN's factor on queries and keys that is not part of the rotary tables (arXiv:2309.00071)."""
    weight = rope.params.get("mscale_all_dim") or 0
    factor = rope.params.get("factor") or 1
    return 0.1 * float(weight) * math.log(float(factor)) + 1.0 if weight and float(factor) > 1 else 1.0


LATENT_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "rope_interleave": True,
}
_NAMES = {"head_dim": "qk_rope_head_dim", "num_experts": "n_routed_experts"}
LATENT_FIXED = NO_WINDOW | {"num_key_value_heads": None}
"""The number of key/value heads has no meaning: there is one compressed vector for all heads."""

DEEPSEEK_V3 = DecoderFamily(
    model="octavo.models.deepseek:DeepseekDecoder",
    model_type="deepseek_v3",
    names=_NAMES,
    defaults={
        **LATENT_DEFAULTS,
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "n_shared_experts": 1,
        "num_experts": 256,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 1536,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "max_position_embeddings": 4096,
        "eos_token_id": 1,
    },
    fixed=LATENT_FIXED | {"mlp_bias": False},
    parse_own=parse_v3,
)

FAMILIES = {
    "DeepseekV2ForCausalLM": DecoderFamily(
        model="octavo.models.deepseek:DeepseekDecoder",
        model_type="deepseek_v2",
        names=_NAMES,
        defaults={
            **LATENT_DEFAULTS,
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "first_k_dense_replace": 0,
            "num_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "eos_token_id": 2,
        },
        fixed=LATENT_FIXED | {"rope_interleave": True},
        parse_own=_parse_v2,
    ),
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "Glm4MoeLiteForCausalLM": replace(
        DEEPSEEK_V3,
        model_type="glm4_moe_lite",
        defaults={
            **LATENT_DEFAULTS,
            "vocab_size": 154880,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 47,
            "num_attention_heads": 20,
            "n_shared_experts": 1,
            "num_experts": 64,
            "routed_scaling_factor": 1.8,
            "q_lora_rank": 768,
            "v_head_dim": 256,
            "qk_nope_head_dim": 192,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 4,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 1,
        },
    ),
    "AXK1ForCausalLM": replace(
        DEEPSEEK_V3,
        model="octavo.models.deepseek:AXK1ForCausalLM",
        model_type="axk1",
        defaults=DEEPSEEK_V3.defaults
        | {
            "vocab_size": 163840,
            "num_attention_heads": 64,
            "num_experts": 192,
            "first_k_dense_replace": 1,
            "max_position_embeddings": 32768,
            "eos_token_id": 163691,
        },
    ),
}
