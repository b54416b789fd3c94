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


_QWEN3_30B_A3B: dict[str, Any] = {
    **_qwen3(2048, 48, 32, 6144, is_tied=False),
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

_DEEPSEEK_V2_LITE: dict[str, Any] = {
    **_COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 102_400,
    "tie_word_embeddings": False,
    "rope_theta": 10_000,
    "max_position_embeddings": 163_840,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 100_000,
    "eos_token_id": 100_001,
}

_GPT_OSS_20B: dict[str, Any] = {
    **_COMMON,
    "attention_bias": True,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201_088,
    "tie_word_embeddings": False,
    "rope_theta": 150_000,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 199_998,
    "eos_token_id": 200_002,
}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, is_tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288, is_tied=False),
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    "deepseek-v2-lite": _DEEPSEEK_V2_LITE,
    "gpt-oss-20b": _GPT_OSS_20B,
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
