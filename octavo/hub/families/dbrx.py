"""DBRX: configuration parsing."""

from typing import Any

from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.families.sparse import SparseFields
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import RowExperts


def _dbrx(values: ConfigValues, config: ModelConfig) -> SparseFields:
    routing = parse_routing(values, renormalises=_renormalises(_feed_forward(values)))
    # The model's names put "experts.mlp" in the place of "expert_rows"; a part called "mlp" would be renamed itself.
    storage = RowExperts("expert_rows.w1", "expert_rows.v1", "expert_rows.w2")
    experts = ExpertFields(routing, config.intermediate_size, (True,) * config.num_layers, storage=storage)
    bound = _attention(values).optional_number("clip_qkv")
    return SparseFields(experts, has_fused_qkv=True, clip_qkv=bound, norm="layer without bias")


def _renormalises(feed_forward: ConfigValues) -> bool:
    """Whether a token's weights are divided by their sum, the only norm of them that is supported."""
    power = feed_forward.optional_number("moe_normalize_expert_weights")
    if power not in (None, 1.0):
        raise invalid("moe_normalize_expert_weights", power, "1 or null")
    return power is not None


def _attention(values: ConfigValues) -> ConfigValues:
    return ConfigValues(values.mapping("attn_config"), {"kv_n_heads": 1}, {})


def _feed_forward(values: ConfigValues) -> ConfigValues:
    defaults = {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1, "moe_normalize_expert_weights": 1.0}
    return ConfigValues(values.mapping("ffn_config"), defaults, {})


def _flat_keys(values: ConfigValues) -> dict[str, Any]:
    """What stands in two objects inside the configuration."""
    attention, feed_forward = _attention(values), _feed_forward(values)
    keys: dict[str, Any] = {
        "num_key_value_heads": attention.get("kv_n_heads"),
        "intermediate_size": feed_forward.get("ffn_hidden_size"),
        "num_experts": feed_forward.get("moe_num_experts"),
        "num_experts_per_tok": feed_forward.get("moe_top_k"),
        "hidden_act": feed_forward.mapping("ffn_act_fn").get("name", "silu"),
    }
    theta = attention.optional_number("rope_theta")
    if theta is not None:  # transformers 5 adds a default to rope_parameters where a published file has only this one
        keys["rope_parameters"] = values.mapping("rope_parameters") | {"rope_theta": theta}
    return keys


FAMILIES = {
    "DbrxForCausalLM": DecoderFamily(
        model="octavo.models.sparse:DbrxForCausalLM",
        model_type="dbrx",
        names={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        defaults={
            "vocab_size": 32000,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        fixed=NO_WINDOW | {"rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        derive=_flat_keys,
        parse_own=_dbrx,
    ),
}
