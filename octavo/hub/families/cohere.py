"""Command R and Command R7B: configuration parsing."""

from functools import partial
from typing import Any

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig, *, has_rope_in_full_layers: bool) -> BlockFields:
    has_bias = values.flag("attention_bias")
    return BlockFields(
        norm="no_bias",
        is_parallel=True,
        has_shared_norm=True,
        is_gated=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=False,
        head_norm="by_head" if values.flag("use_qk_norm") else "none",
        is_interleaved=True,
        has_rope_in_full_layers=has_rope_in_full_layers,
        logit_scale=values.optional_number("logit_scale"),
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "eos_token_id": 255001,
}

FAMILIES = {
    "CohereForCausalLM": DecoderFamily(
        model="octavo.models.cohere:CohereForCausalLM",
        model_type="cohere",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={**_DEFAULTS, "rope_theta": 500000.0},
        fixed=NO_WINDOW,
        parse_own=partial(_parse_own, has_rope_in_full_layers=True),
    ),
    "Cohere2ForCausalLM": DecoderFamily(
        model="octavo.models.cohere:CohereForCausalLM",
        model_type="cohere2",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={**_DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4},
        fixed={"head_dim": None, "use_qk_norm": False},
        parse_own=partial(_parse_own, has_rope_in_full_layers=False),
    ),
}
