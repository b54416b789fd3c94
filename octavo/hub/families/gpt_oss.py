"""gpt-oss: configuration parsing."""

from dataclasses import dataclass
from typing import Any

from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import ExpertSpec, SeparateExperts, StackedExperts


@dataclass(frozen=True, slots=True)
class GptOssFields:
    """gpt-oss's own quantities."""

    experts: ExpertFields
    attention_bias: bool


def _parse_own(values: ConfigValues, config: ModelConfig) -> GptOssFields:
    is_mxfp4 = config.quantization.get("quant_method") == "mxfp4"
    stacked = StackedExperts(is_transposed=not is_mxfp4, is_interleaved=True, is_mxfp4=is_mxfp4)
    experts = ExpertFields(
        parse_routing(values, renormalises=True),
        config.intermediate_size,
        (True,) * config.num_layers,
        storage=SeparateExperts() if values.flag("is_from_gguf") else stacked,
        spec=ExpertSpec("clamped_swiglu", values.number("swiglu_alpha"), values.number("swiglu_limit")),
        has_bias=True,
    )
    return GptOssFields(experts, values.flag("attention_bias"))


_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

FAMILIES = {
    "GptOssForCausalLM": DecoderFamily(
        model="octavo.models.gpt_oss:GptOssForCausalLM",
        model_type="gpt_oss",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "rope_parameters": _YARN,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "num_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "attention_bias": True,
        },
        parse_own=_parse_own,
    )
}
