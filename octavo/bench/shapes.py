"""Shapes of public models by name, to benchmark with dummy weights without a download."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_COMMON: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16"}


def _qwen3(hidden_size: int, num_layers: int, num_heads: int, intermediate_size: int, is_tied: bool) -> dict[str, Any]:
    return {
        **_COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate_size,
        "vocab_size": 151_936,
        "tie_word_embeddings": is_tied,
        "rope_theta": 1_000_000,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
    }


def _llama3(
    hidden_size: int, num_layers: int, head_dim: int, intermediate_size: int, rope_factor: float, is_tied: bool
) -> dict[str, Any]:
    return {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
        "intermediate_size": intermediate_size,
        "vocab_size": 128_256,
        "tie_word_embeddings": is_tied,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, is_tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288, is_tied=False),
    "llama3.2-1b": _llama3(2048, 16, 64, 8192, 32.0, is_tied=True),
    "llama3.1-8b": _llama3(4096, 32, 128, 14_336, 8.0, is_tied=False),
    "tiny": {
        **_qwen3(64, 2, 16, 128, is_tied=True),
        "head_dim": 8,
        "vocab_size": 512,
        "bos_token_id": 510,
        "eos_token_id": 511,
        "torch_dtype": "float32",
    },
}
"""config.json of each, by name; ``tiny`` is not a real model, and fast on any machine."""


@contextmanager
def model_path(model: str) -> Iterator[str]:
    """A model for engines to load: a temporary folder for a built-in shape, any other name unchanged.

    Args:
        model: a name in :data:`SHAPES`, or any other model.
    """
    if model not in SHAPES:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        path = Path(folder) / model
        path.mkdir()
        (path / "config.json").write_text(json.dumps(SHAPES[model]), encoding="utf-8")
        yield str(path)
