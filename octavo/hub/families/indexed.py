"""DeepSeek V3.2 and GLM-5, in which an indexer chooses the tokens that a query attends to: configuration parsing."""

from dataclasses import replace
from typing import Any

from octavo.hub.config_values import ConfigValues
from octavo.hub.families.deepseek import DEEPSEEK_V3, DeepseekFields, parse_v3
from octavo.hub.model_config import ModelConfig

_LONGEST = 1 << 27


def parse_indexed(values: ConfigValues, config: ModelConfig) -> DeepseekFields:
    """What an indexer adds to DeepSeek V3."""
    return replace(parse_v3(values, config), num_indexed=values.count("index_topk"))


def _all_indexed(values: ConfigValues) -> dict[str, Any]:
    """The longest sequence is one of which the indexer chooses all tokens, whatever scores it gives them."""
    key, longest = "original_max_position_embeddings", values.count("max_position_embeddings", _LONGEST)
    keys: dict[str, Any] = {"max_position_embeddings": min(longest, values.count("index_topk"))}
    if key not in values.mapping("rope_parameters") | values.mapping("rope_scaling"):
        keys[key] = values.optional_count(key, _LONGEST) or longest
    return keys


DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    model="octavo.models.deepseek:IndexedDecoder",
    model_type="deepseek_v32",
    defaults=DEEPSEEK_V3.defaults | {"max_position_embeddings": 163840, "index_topk": 2048},
    fixed=DEEPSEEK_V3.fixed | {"rope_interleave": True},
    derive=_all_indexed,
    parse_own=parse_indexed,
)

FAMILIES = {
    "DeepseekV32ForCausalLM": DEEPSEEK_V32,
    "GlmMoeDsaForCausalLM": replace(
        DEEPSEEK_V32,
        model_type="glm_moe_dsa",
        defaults=DEEPSEEK_V32.defaults
        | {
            "vocab_size": 154880,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_group": 1,
            "topk_group": 1,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
        },
    ),
}
