"""Decoders with layer norms and older layouts: from GPT-2 to Command R."""

from collections.abc import Callable
from typing import Any

from transformers import (
    BloomConfig,
    CodeGenConfig,
    Cohere2Config,
    CohereConfig,
    FalconConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    Jais2Config,
    MptConfig,
    NemotronConfig,
    OlmoConfig,
    OPTConfig,
    PersimmonConfig,
    PhiConfig,
    PreTrainedConfig,
    StableLmConfig,
    Starcoder2Config,
)

from tiny.sizes import MAX_LENGTH, VOCAB_SIZE, rope, sizes


def _gpt2_sizes(**changes: Any) -> dict[str, Any]:
    """Sizes of a decoder, by GPT-2's names."""
    return {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": MAX_LENGTH,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | changes


def _bloom_sizes(**changes: Any) -> dict[str, Any]:
    """Sizes of a decoder, by BLOOM's names."""
    own = {"hidden_size": 48, "n_layer": 3, "n_head": 4, "seq_length": MAX_LENGTH}
    return {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | own | changes


def _partial(share: float, **params: float) -> dict[str, Any]:
    """``rope_parameters`` of heads of which a share rotates."""
    return rope("default", partial_rotary_factor=share, **params)


def _opt(**changes: Any) -> OPTConfig:
    return OPTConfig(**(sizes(ffn_dim=72) | changes))


def _falcon(**changes: Any) -> FalconConfig:
    return FalconConfig(**(sizes(ffn_hidden_size=80, num_key_value_heads=None) | changes))


def _mpt(**attention: Any) -> MptConfig:
    heads = attention.pop("n_heads", 4)
    own = {"d_model": 48, "n_heads": heads, "n_layers": 3, "max_seq_len": MAX_LENGTH, "attn_config": attention}
    return MptConfig(vocab_size=VOCAB_SIZE, bos_token_id=1, eos_token_id=2, pad_token_id=0, **own)


def _cohere2(pattern: str, **changes: Any) -> Cohere2Config:
    """``pattern``: a letter per layer, ``l`` for local and ``g`` for global."""
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    layers = {"num_hidden_layers": len(pattern), "layer_types": [kinds[letter] for letter in pattern]}
    return Cohere2Config(**(sizes(sliding_window=9, logit_scale=0.5, **layers) | changes))


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: GPT2Config(**_gpt2_sizes()),
    "gpt2-scaled-by-layer": lambda: GPT2Config(
        **_gpt2_sizes(n_inner=72, scale_attn_by_inverse_layer_idx=True, n_head=6, activation_function="relu")
    ),
    "gpt2-unscaled-untied": lambda: GPT2Config(
        **_gpt2_sizes(n_embd=20, n_head=2, scale_attn_weights=False, tie_word_embeddings=False)
    ),
    "gpt-bigcode": lambda: GPTBigCodeConfig(**_gpt2_sizes(n_head=6, n_inner=80)),
    "gpt-bigcode-all-heads": lambda: GPTBigCodeConfig(**_gpt2_sizes(multi_query=False)),
    "gpt-neo": lambda: GPTNeoConfig(
        **sizes(num_layers=3, num_heads=4, window_size=9, attention_types=[[["global", "local"], 1], [["local"], 1]])
    ),
    "gpt-neox": lambda: GPTNeoXConfig(**sizes(rope_parameters=_partial(0.5))),
    "gpt-neox-sequential": lambda: GPTNeoXConfig(
        **sizes(use_parallel_residual=False, attention_bias=False, num_attention_heads=6)
    ),
    "phi": lambda: PhiConfig(**sizes(rope_parameters=_partial(0.5))),
    "phi-tied-normed": lambda: PhiConfig(
        **sizes(qk_layernorm=True, tie_word_embeddings=True, num_attention_heads=6, rope_parameters=_partial(0.25))
    ),
    "stablelm": lambda: StableLmConfig(**sizes(use_qkv_bias=True, rope_parameters=_partial(0.5))),
    "stablelm-parallel-normed": lambda: StableLmConfig(
        **sizes(qk_layernorm=True, use_parallel_residual=True, hidden_size=60, num_attention_heads=6)
        | {"rope_parameters": _partial(0.4)}
    ),
    "starcoder2": lambda: Starcoder2Config(**sizes(num_attention_heads=6)),
    "starcoder2-window": lambda: Starcoder2Config(
        **sizes(sliding_window=9, use_bias=False, tie_word_embeddings=False, num_key_value_heads=1)
    ),
    "gptj": lambda: GPTJConfig(**_gpt2_sizes(rotary_dim=8)),
    "gptj-tied": lambda: GPTJConfig(
        **_gpt2_sizes(rotary_dim=4, n_embd=60, n_head=6, n_inner=64, tie_word_embeddings=True)
    ),
    "codegen": lambda: CodeGenConfig(**_gpt2_sizes(rotary_dim=6, n_embd=64, n_head=8)),
    "opt": _opt,
    "opt-norms-after": lambda: _opt(do_layer_norm_before=False, tie_word_embeddings=False),
    "opt-plain": lambda: _opt(
        enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu", num_attention_heads=6
    ),
    "persimmon": lambda: PersimmonConfig(**sizes(rope_parameters=_partial(0.5))),
    "persimmon-tied": lambda: PersimmonConfig(
        **sizes(qk_layernorm=False, tie_word_embeddings=True, rope_parameters=_partial(0.25), num_attention_heads=6)
    ),
    "cohere": lambda: CohereConfig(**sizes(use_qk_norm=True, logit_scale=0.3)),
    "cohere-untied": lambda: CohereConfig(
        **sizes(hidden_size=60, num_attention_heads=6, attention_bias=True, tie_word_embeddings=False)
    ),
    "cohere2": lambda: _cohere2("lllgl"),
    "cohere2-biased": lambda: _cohere2("gl", attention_bias=True, hidden_size=112, num_attention_heads=14),
    "nemotron": lambda: NemotronConfig(**sizes(rope_parameters=_partial(0.5))),
    "nemotron-biased": lambda: NemotronConfig(
        **sizes(attention_bias=True, mlp_bias=True, head_dim=20, num_attention_heads=10, num_key_value_heads=2)
        | {"rope_parameters": _partial(0.6), "tie_word_embeddings": True}
    ),
    "jais2": lambda: Jais2Config(**sizes(head_dim=20)),
    "olmo": lambda: OlmoConfig(**sizes(clip_qkv=0.7)),
    "olmo-biased": lambda: OlmoConfig(
        **sizes(attention_bias=True, tie_word_embeddings=True, num_attention_heads=6, num_key_value_heads=None)
    ),
    "falcon-multi-query": lambda: _falcon(num_attention_heads=6),
    "falcon-new-architecture": lambda: _falcon(
        new_decoder_architecture=True, num_attention_heads=6, num_kv_heads=2, tie_word_embeddings=False
    ),
    "falcon-one-norm": lambda: _falcon(new_decoder_architecture=True, num_kv_heads=1, num_ln_in_parallel_attn=1),
    "falcon-sequential": lambda: _falcon(parallel_attn=False, multi_query=False, bias=True),
    "falcon-alibi": lambda: _falcon(alibi=True, parallel_attn=False, multi_query=False, bias=True),
    "falcon-alibi-multi-query": lambda: _falcon(alibi=True, num_attention_heads=8, hidden_size=64),
    "bloom": lambda: BloomConfig(**_bloom_sizes()),
    "bloom-six-heads": lambda: BloomConfig(**_bloom_sizes(n_head=6, tie_word_embeddings=False)),
    "mpt": _mpt,
    "mpt-clipped": lambda: _mpt(clip_qkv=0.6, softmax_scale=0.4, n_heads=6),
}
