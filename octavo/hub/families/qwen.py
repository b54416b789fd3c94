"""Qwen2, Qwen3 and MiMo: configuration parsing."""

from typing import Any

from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.families.llama import parse_biases

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES = {
    "Qwen2ForCausalLM": DecoderFamily(
        model="octavo.models.qwen2:Qwen2ForCausalLM", model_type="qwen2", defaults=_DEFAULTS, has_window_switch=True
    ),
    "MiMoForCausalLM": DecoderFamily(
        model="octavo.models.qwen2:Qwen2ForCausalLM", model_type="mimo", defaults=_DEFAULTS, has_window_switch=True
    ),
    "Qwen3ForCausalLM": DecoderFamily(
        model="octavo.models.qwen3:Qwen3ForCausalLM",
        model_type="qwen3",
        defaults={**_DEFAULTS, "head_dim": 128},
        fixed={"mlp_bias": False},
        has_window_switch=True,
        parse_own=parse_biases,
    ),
}
