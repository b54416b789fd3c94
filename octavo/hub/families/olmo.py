"""OLMo 2 and 3 and EXAONE 4, which norm what is added to the residual stream: configuration parsing."""

from dataclasses import dataclass
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class OlmoFields:
    """What varies in OLMo's layer.

    Attributes:
        attention_bias: of all projections of the attention.
        has_head_norms: whether each head's query and key are normed, instead of the whole projections.
        full_rope, sliding_rope: of full-attention and of sliding-window layers; None for layers without rotation.
    """

    attention_bias: bool
    has_head_norms: bool
    full_rope: RopeConfig | None
    sliding_rope: RopeConfig


def _parse_olmo(values: ConfigValues, config: ModelConfig) -> OlmoFields:
    """In OLMo 3, the scaling is of full layers only."""
    return OlmoFields(
        attention_bias=values.flag("attention_bias"),
        has_head_norms=False,
        full_rope=config.rope,
        sliding_rope=parse_ropes(values)[1] or RopeConfig(config.rope.theta),
    )


def _parse_exaone4(values: ConfigValues, config: ModelConfig) -> OlmoFields:
    """In models with windows, full layers have no position embedding."""
    has_windows = values.get("sliding_window") is not None
    return OlmoFields(
        attention_bias=False,
        has_head_norms=True,
        full_rope=None if has_windows else config.rope,
        sliding_rope=config.rope,
    )


_OLMO: dict[str, Any] = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 50279,
}

FAMILIES = {
    "Olmo2ForCausalLM": DecoderFamily(
        model="octavo.models.olmo2:Olmo2ForCausalLM",
        model_type="olmo2",
        defaults=_OLMO,
        fixed=NO_WINDOW,
        parse_own=_parse_olmo,
    ),
    "Olmo3ForCausalLM": DecoderFamily(
        model="octavo.models.olmo2:Olmo2ForCausalLM",
        model_type="olmo3",
        defaults={**_OLMO, "rope_theta": 500_000.0, "sliding_window": 4096, "sliding_window_pattern": 4},
        parse_own=_parse_olmo,
    ),
    "Exaone4ForCausalLM": DecoderFamily(
        model="octavo.models.olmo2:Olmo2ForCausalLM",
        model_type="exaone4",
        defaults={
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "eos_token_id": 2,
        },
        parse_own=_parse_exaone4,
    ),
}
