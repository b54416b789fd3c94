"""Models that run as the transformers library has them (``--model-impl transformers``)."""

from collections.abc import Callable
from typing import Any

from transformers import (
    ApertusConfig,
    BitNetConfig,
    CohereConfig,
    CwmConfig,
    Dots1Config,
    Gemma3TextConfig,
    GlmConfig,
    GPT2Config,
    GptOssConfig,
    HeliumConfig,
    Jais2Config,
    LlamaConfig,
    MixtralConfig,
    NanoChatConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    VaultGemmaConfig,
    YoutuConfig,
)

from tiny.sizes import MAX_LENGTH, rope, sizes


def _layers(pattern: str) -> dict[str, Any]:
    """``pattern``: a letter per layer, ``l`` for local and ``g`` for global."""
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    return {"num_hidden_layers": len(pattern), "layer_types": [kinds[letter] for letter in pattern]}


_MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
_DOTS1 = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
}
_MLA = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
_LONG = rope(
    "longrope",
    short_factor=[1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
    long_factor=[2.0] * 6,
    original_max_position_embeddings=MAX_LENGTH,
)

# The library has no plan to divide these over devices.
UNDIVIDED = ("generic-gpt2", "generic-gpt-oss", "generic-opt", "generic-bitnet")

# Some of their operations are PyTorch's: rotations, routers, activations and norms of other kinds than ours.
NOT_RECORDED = (
    "generic-apertus",
    "generic-dots1",
    "generic-gpt-oss",
    "generic-gpt2",
    "generic-nanochat",
    "generic-opt",
    "generic-phi",
    "generic-vaultgemma",
    "generic-youtu",
)

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    # Forms of layers: biases, ties, windows, norms of heads, experts, rotations, learned positions, sinks.
    "generic-llama": lambda: LlamaConfig(**sizes(attention_bias=True, mlp_bias=True)),
    "generic-llama-tied": lambda: LlamaConfig(**sizes(tie_word_embeddings=True, head_dim=20)),
    "generic-llama-dynamic": lambda: LlamaConfig(**sizes(rope_parameters=rope("dynamic", factor=2.0))),
    "generic-qwen3": lambda: Qwen3Config(**sizes(head_dim=16)),
    "generic-gemma3": lambda: Gemma3TextConfig(
        **sizes(head_dim=16, query_pre_attn_scalar=24, sliding_window=12, **_layers("llgl"))
    ),
    "generic-mixtral": lambda: MixtralConfig(**sizes(**_MIXTRAL)),
    "generic-qwen3-moe": lambda: Qwen3MoeConfig(
        **sizes(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=12)
    ),
    "generic-phi3": lambda: Phi3Config(**sizes(rope_parameters=_LONG)),
    "generic-olmo2": lambda: Olmo2Config(**sizes()),
    "generic-glm": lambda: GlmConfig(**sizes(head_dim=12, partial_rotary_factor=0.5)),
    "generic-cohere": lambda: CohereConfig(**sizes()),
    "generic-gpt2": lambda: GPT2Config(**sizes(n_positions=MAX_LENGTH)),
    "generic-phi": lambda: PhiConfig(**sizes(hidden_size=64, partial_rotary_factor=0.5)),
    "generic-gpt-oss": lambda: GptOssConfig(**sizes(head_dim=12, sliding_window=9, **_MIXTRAL, **_layers("lglg"))),
    "generic-opt": lambda: OPTConfig(**sizes(ffn_dim=80, word_embed_proj_dim=48)),
    # Parts that few others have: latent attention in its expanded form, norms inside layers, other activations.
    "generic-helium": lambda: HeliumConfig(**sizes(head_dim=12)),
    "generic-cwm": lambda: CwmConfig(**sizes(head_dim=12, sliding_window=9, **_layers("glgl"))),
    "generic-dots1": lambda: Dots1Config(**sizes(**_DOTS1)),
    "generic-youtu": lambda: YoutuConfig(**sizes(**_MLA)),
    "generic-bitnet": lambda: BitNetConfig(**sizes()),
    "generic-jais2": lambda: Jais2Config(**sizes(head_dim=12)),
    "generic-nanochat": lambda: NanoChatConfig(**sizes(head_dim=12)),
    "generic-vaultgemma": lambda: VaultGemmaConfig(
        **sizes(head_dim=12, query_pre_attn_scalar=12, sliding_window=10, **_layers("lgl"))
    ),
    "generic-apertus": lambda: ApertusConfig(**sizes(head_dim=12)),
}
