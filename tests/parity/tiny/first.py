"""Decoders of the first families: Llama, Mistral, Qwen, Gemma 3, DeepSeek-V2, Mamba-2."""

from collections.abc import Callable
from typing import Any

from transformers import (
    DeepseekV2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    LlamaConfig,
    Mamba2Config,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tiny.sizes import VOCAB_SIZE, rope, sizes


def _gemma3(pattern: str, **changes: Any) -> Gemma3TextConfig:
    """``pattern``: a letter per layer, ``l`` for local and ``g`` for global."""
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    layers = {"num_hidden_layers": len(pattern), "layer_types": [kinds[letter] for letter in pattern]}
    usual = sizes(head_dim=16, query_pre_attn_scalar=24, sliding_window=12, **layers)
    return Gemma3TextConfig(**(usual | changes))


def _gemma3n(pattern: str, num_shared: int, **changes: Any) -> Gemma3nTextConfig:
    """``pattern`` as of :func:`_gemma3`; the last ``num_shared`` layers have no keys of their own."""
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    own = {"altup_num_inputs": 3, "laurel_rank": 6, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 190}
    sparsity = [0.7 if index % 2 == 0 else 0.0 for index in range(len(pattern))]
    usual = sizes(
        head_dim=8,
        sliding_window=12,
        num_hidden_layers=len(pattern),
        layer_types=[kinds[letter] for letter in pattern],
        num_kv_shared_layers=num_shared,
        activation_sparsity_pattern=sparsity,
        **own,
    )
    return Gemma3nTextConfig(**(usual | changes))


def _deepseek_v2(**changes: Any) -> DeepseekV2Config:
    ranks = {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
    usual = sizes(num_key_value_heads=None, first_k_dense_replace=1, **ranks, **experts)
    return DeepseekV2Config(**(usual | changes))


def _mamba2(**changes: Any) -> Mamba2Config:
    own = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 12, "n_groups": 2, "num_hidden_layers": 3}
    return Mamba2Config(vocab_size=VOCAB_SIZE, chunk_size=8, pad_token_id=0, **(own | changes))


_LLAMA3_SCALING = rope(
    "llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
_GEMMA3_SCALING = {
    "full_attention": rope("linear", 1_000_000.0, factor=8.0),
    "sliding_attention": rope("default"),
}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**sizes()),
    "llama-tied": lambda: LlamaConfig(**sizes(tie_word_embeddings=True)),
    "llama-biased": lambda: LlamaConfig(**sizes(attention_bias=True, mlp_bias=True)),
    "llama-one-kv-head": lambda: LlamaConfig(**sizes(num_key_value_heads=1, head_dim=24)),
    "llama3-rope": lambda: LlamaConfig(**sizes(rope_parameters=_LLAMA3_SCALING)),
    "llama-linear-rope": lambda: LlamaConfig(**sizes(rope_parameters=rope("linear", factor=4.0))),
    "mistral": lambda: MistralConfig(**sizes(sliding_window=None)),
    "mistral-window": lambda: MistralConfig(**sizes(sliding_window=11, head_dim=16)),
    "qwen2": lambda: Qwen2Config(**sizes()),
    "qwen2-window": lambda: Qwen2Config(
        **sizes(use_sliding_window=True, sliding_window=9, max_window_layers=1, tie_word_embeddings=True)
    ),
    "qwen2-yarn": lambda: Qwen2Config(
        **sizes(rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64))
    ),
    "qwen3": lambda: Qwen3Config(**sizes(head_dim=16)),
    "qwen3-biased": lambda: Qwen3Config(**sizes(head_dim=20, attention_bias=True, tie_word_embeddings=True)),
    "gemma3": lambda: _gemma3("llglglg"),
    "gemma3-released-pattern": lambda: _gemma3("lllllglllllgl", hidden_size=32, sliding_window=8),
    "gemma3-linear-rope": lambda: _gemma3("llgll", rope_parameters=_GEMMA3_SCALING, sliding_window=16),
    "gemma3-soft-caps": lambda: _gemma3("lglg", attn_logit_softcapping=4.0, final_logit_softcapping=3.0),
    "gemma3n": lambda: _gemma3n("llglglg", 3),
    "gemma3n-windows-shared": lambda: _gemma3n(
        "lgll", 2, altup_active_idx=1, altup_correct_scale=False, intermediate_size=[40, 40, 80, 80]
    ),
    "gemma3n-biased": lambda: _gemma3n("lg", 0, attention_bias=True, tie_word_embeddings=False),
    "deepseek-v2-lite": lambda: _deepseek_v2(q_lora_rank=None),
    "deepseek-v2-grouped": lambda: _deepseek_v2(
        topk_method="group_limited_greedy",
        n_group=3,
        topk_group=2,
        routed_scaling_factor=1.7,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.9),
    ),
    "mamba2": _mamba2,
    "mamba2-biased": lambda: _mamba2(use_bias=True, n_groups=1, conv_kernel=3, tie_word_embeddings=True),
    "mamba2-limited": lambda: _mamba2(use_conv_bias=False, time_step_limit=(0.05, 0.4)),
    "gemma3-untied": lambda: _gemma3("lg", tie_word_embeddings=False, attention_bias=True),
}
