"""Gemma 3 (text): configuration parsing."""

from dataclasses import dataclass

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import DecoderFamily, check_rotary
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class Gemma3Fields:
    """Gemma 3's own quantities.

    Attributes:
        attention_bias: of all projections of the attention.
        local_rope: of sliding-window layers.
        query_pre_attn_scalar: scores are divided by its square root.
        attn_logit_softcap, final_logit_softcap: tanh caps, None for none.
    """

    attention_bias: bool
    local_rope: RopeConfig
    query_pre_attn_scalar: float
    attn_logit_softcap: float | None
    final_logit_softcap: float | None


def _parse_own(values: ConfigValues, config: ModelConfig) -> Gemma3Fields:
    local_rope = parse_ropes(values)[1] or config.rope
    check_rotary(config.head_dim, local_rope)
    return Gemma3Fields(
        attention_bias=values.flag("attention_bias"),
        local_rope=local_rope,
        query_pre_attn_scalar=values.optional_number("query_pre_attn_scalar") or config.head_dim,
        attn_logit_softcap=values.optional_number("attn_logit_softcapping"),
        final_logit_softcap=values.optional_number("final_logit_softcapping"),
    )


FAMILIES = {
    "Gemma3ForCausalLM": DecoderFamily(
        model="octavo.models.gemma3:Gemma3ForCausalLM",
        model_type="gemma3_text",
        defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "bos_token_id": 2,
            "eos_token_id": 1,
        },
        parse_own=_parse_own,
    )
}
