"""LongCat-Flash: configuration parsing."""

from dataclasses import replace

from octavo.hub.config_values import ConfigValues, invalid, reject_flags
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.deepseek import LATENT_DEFAULTS, LATENT_FIXED, DeepseekFields, latent_fields
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.model_config import ModelConfig


def _longcat(values: ConfigValues, config: ModelConfig) -> DeepseekFields:
    reject_flags(values, "router_bias")
    for key, only in (("attention_method", "MLA"), ("zero_expert_type", "identity"), *_SCALINGS):
        if values.get(key) not in (None, only):
            raise invalid(key, values.get(key), repr(only))
    num_identity = values.optional_count("zero_expert_num", least=0) or 0
    routing = parse_routing(values, renormalises=False)
    routing = replace(
        routing,
        num_experts=routing.num_experts + num_identity,
        scale=values.number("routed_scaling_factor"),
        is_corrected=True,
    )
    experts = ExpertFields(
        routing,
        values.count("moe_intermediate_size"),
        (True,) * config.num_layers,
        correction="router.e_score_correction_bias",
        num_identity=num_identity,
    )
    fields = latent_fields(values, config, experts)
    query_scale = (config.hidden_size / values.count("q_lora_rank")) ** 0.5  # of queries, and so of scores
    return replace(
        fields,
        score_scale=fields.score_scale * query_scale,
        latent_scale=(config.hidden_size / fields.kv_lora_rank) ** 0.5,
    )


_SCALINGS = (("mla_scale_q_lora", True), ("mla_scale_kv_lora", True))

FAMILIES = {
    "LongcatFlashForCausalLM": DecoderFamily(
        model="octavo.models.longcat:LongcatFlashForCausalLM",
        model_type="longcat_flash",
        names={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "qk_rope_head_dim",
            "num_experts": "n_routed_experts",
            "num_experts_per_tok": "moe_topk",
            "moe_intermediate_size": "expert_ffn_hidden_size",
        },
        defaults={
            **LATENT_DEFAULTS,
            "vocab_size": 131072,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 28,
            "num_attention_heads": 64,
            "num_experts": 512,
            "zero_expert_num": 256,
            "num_experts_per_tok": 12,
            "routed_scaling_factor": 6.0,
            "q_lora_rank": 1536,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000_000.0,
            "eos_token_id": 2,
        },
        fixed=LATENT_FIXED,
        parse_own=_longcat,
    ),
}
