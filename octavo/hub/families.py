"""What a family's configuration means where it is silent, as its published reference code has it."""

import difflib
from dataclasses import dataclass, field
from typing import Any

from octavo.hub.encoder_families import ENCODERS


@dataclass(frozen=True, slots=True)
class Family:
    """Reading rules of one architecture.

    Attributes:
        model_type: as config.json names the family.
        defaults: values of keys that are absent.
        fixed: values that hold whatever the configuration says, since the family's code does not ask it.
        has_window_switch: whether ``use_sliding_window`` turns sliding windows on.
    """

    model_type: str
    defaults: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    has_window_switch: bool = False


COMMON_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

_QWEN_DEFAULTS: dict[str, Any] = {
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

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(
        "llama",
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        fixed={"sliding_window": None, "layer_types": None},
    ),
    "MistralForCausalLM": Family(
        "mistral",
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        fixed={"attention_bias": False, "mlp_bias": False},
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        _QWEN_DEFAULTS,
        fixed={"attention_bias": True, "mlp_bias": False},
        has_window_switch=True,
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        {**_QWEN_DEFAULTS, "head_dim": 128},
        fixed={"mlp_bias": False},
        has_window_switch=True,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        {
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
        fixed={"mlp_bias": False},
    ),
}


def unsupported_architecture(architecture: str, *, has_own_code: bool = False) -> str:
    """Sentences on an architecture that is not known, with the names that are near it.

    Args:
        has_own_code: the model brings code for it (``auto_map`` in config.json).
    """
    near = difflib.get_close_matches(architecture, FAMILIES, n=3, cutoff=0.5)
    near = near or difflib.get_close_matches(architecture, ENCODERS, n=3, cutoff=0.75)
    known = ", ".join(sorted([*FAMILIES, *ENCODERS]))
    hint = f"Near it are: {', '.join(near)}." if near else f"Supported are: {known}."
    if has_own_code:
        hint = "Its code lies in the model's folder, and Octavo runs none from there, trusted or not. " + hint
    return f"The architecture {architecture!r} is not supported. {hint}"
