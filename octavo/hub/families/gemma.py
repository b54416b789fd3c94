"""Gemma 1 to 3 (text), and VaultGemma: configuration parsing."""

from dataclasses import dataclass, replace
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily, check_rotary
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class GemmaFields:
    """What varies in Gemma's layer.

    Attributes:
        attention_bias: of all projections of the attention.
        query_pre_attn_scalar: scores are divided by its square root.
        attn_logit_softcap, final_logit_softcap: tanh caps, None for none.
        has_post_norms: whether what is added to the stream is normed.
        has_head_norms: whether each head's query and key are normed.
        local_rope: of sliding-window layers, None if they share that of the others.
    """

    attention_bias: bool
    query_pre_attn_scalar: float
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    has_post_norms: bool = False
    has_head_norms: bool = False
    local_rope: RopeConfig | None = None


def _parse_gemma(values: ConfigValues, config: ModelConfig) -> GemmaFields:
    return GemmaFields(attention_bias=values.flag("attention_bias"), query_pre_attn_scalar=config.head_dim)


def _parse_vaultgemma(values: ConfigValues, config: ModelConfig) -> GemmaFields:
    return GemmaFields(
        attention_bias=values.flag("attention_bias"),
        query_pre_attn_scalar=values.optional_number("query_pre_attn_scalar") or config.head_dim,
        attn_logit_softcap=values.optional_number("attn_logit_softcapping"),
        final_logit_softcap=values.optional_number("final_logit_softcapping"),
    )


def _parse_gemma2(values: ConfigValues, config: ModelConfig) -> GemmaFields:
    return replace(_parse_vaultgemma(values, config), has_post_norms=True)


def _parse_gemma3(values: ConfigValues, config: ModelConfig) -> GemmaFields:
    local_rope = parse_ropes(values)[1] or config.rope
    check_rotary(config.head_dim, local_rope)
    return replace(_parse_gemma2(values, config), has_head_norms=True, local_rope=local_rope)


_COMMON: dict[str, Any] = {
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
_GEMMA2: dict[str, Any] = {
    **_COMMON,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3: dict[str, Any] = {
    **_GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

FAMILIES = {
    "GemmaForCausalLM": DecoderFamily(
        model="octavo.models.gemma:GemmaForCausalLM",
        model_type="gemma",
        defaults={
            **_COMMON,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        # Released configurations say "gelu" and mean the approximation.
        fixed=NO_WINDOW | {"hidden_activation": "gelu_pytorch_tanh"},
        parse_own=_parse_gemma,
    ),
    "Gemma2ForCausalLM": DecoderFamily(
        model="octavo.models.gemma:GemmaForCausalLM", model_type="gemma2", defaults=_GEMMA2, parse_own=_parse_gemma2
    ),
    "Gemma3ForCausalLM": DecoderFamily(
        model="octavo.models.gemma:GemmaForCausalLM",
        model_type="gemma3_text",
        defaults=_GEMMA3,
        parse_own=_parse_gemma3,
    ),
    "VaultGemmaForCausalLM": DecoderFamily(
        model="octavo.models.gemma:VaultGemmaForCausalLM",
        model_type="vaultgemma",
        defaults=_GEMMA2,
        parse_own=_parse_vaultgemma,
    ),
}
