"""Decoders with experts."""

from collections.abc import Callable
from typing import Any

from transformers import (
    AfmoeConfig,
    AXK1Config,
    Cohere2MoeConfig,
    DbrxConfig,
    DeepseekV3Config,
    DeepseekV32Config,
    Dots1Config,
    Ernie4_5_MoeConfig,
    ExaoneMoeConfig,
    FlexOlmoConfig,
    FlintConfig,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    GptOssConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    GraniteMoeSWAConfig,
    HunYuanMoEV1Config,
    HYV3Config,
    HYV4Config,
    LagunaConfig,
    Llama4TextConfig,
    LongcatFlashConfig,
    MellumConfig,
    MiMoV2FlashConfig,
    MiniMaxM2Config,
    MixtralConfig,
    OlmoeConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    SolarOpenConfig,
)

from tiny.sizes import MAX_LENGTH, VOCAB_SIZE, rope, sizes

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_CORRECTED = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
_LATENT = {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.9)

_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
# The model's own code has only the short factors.
_LONGROPE = rope("longrope", original_max_position_embeddings=512, factor=2.0, short_mscale=1.2, long_mscale=1.4) | {
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0] * 4,
}


def _deepseek_v3(**changes: Any) -> DeepseekV3Config:
    usual = sizes(num_key_value_heads=None, n_group=4, topk_group=2, **_LATENT, **_CORRECTED)
    return DeepseekV3Config(**(usual | changes))


def _indexed(**changes: Any) -> dict[str, Any]:
    # With few heads many scores are nought, and which of equal ones transformers takes is left to chance.
    indexer = {"index_topk": 13, "index_head_dim": 12, "index_n_heads": 8}
    return sizes(num_key_value_heads=4, **_LATENT, **_CORRECTED, **indexer) | changes


def _longcat(**changes: Any) -> LongcatFlashConfig:
    own = {"num_layers": 2, "ffn_hidden_size": 80, "num_hidden_layers": 4, "num_key_value_heads": None, "head_dim": 8}
    experts = {"n_routed_experts": 5, "zero_expert_num": 4, "moe_topk": 3, "expert_ffn_hidden_size": 24}
    return LongcatFlashConfig(**(sizes(**own, **_LATENT, **experts) | changes))


def _dbrx(attention: dict[str, Any], experts: dict[str, Any]) -> DbrxConfig:
    own = {"d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": MAX_LENGTH, "vocab_size": VOCAB_SIZE}
    # Published files have the base here; this version of transformers computes with that of rope_parameters.
    attention = attention | {"rope_theta": 5_000.0}
    return DbrxConfig(**own, attn_config=attention, ffn_config=experts, rope_parameters=rope("default", 5_000.0))


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "mixtral": lambda: MixtralConfig(**sizes(num_local_experts=5, num_experts_per_tok=2)),
    "mixtral-window": lambda: MixtralConfig(
        **sizes(num_local_experts=4, num_experts_per_tok=3, sliding_window=11, head_dim=20, num_attention_heads=6)
    ),
    "qwen2-moe": lambda: Qwen2MoeConfig(
        **sizes(**_EXPERTS, shared_expert_intermediate_size=40, decoder_sparse_step=2, num_hidden_layers=4)
    ),
    "qwen2-moe-window": lambda: Qwen2MoeConfig(
        **sizes(
            **_EXPERTS,
            shared_expert_intermediate_size=40,
            use_sliding_window=True,
            sliding_window=9,
            norm_topk_prob=True,
            mlp_only_layers=[1],
            qkv_bias=False,
            tie_word_embeddings=True,
        )
    ),
    "qwen3-moe": lambda: Qwen3MoeConfig(**sizes(**_EXPERTS, norm_topk_prob=True, head_dim=16)),
    "qwen3-moe-window": lambda: Qwen3MoeConfig(
        **sizes(**_EXPERTS, head_dim=20, attention_bias=True, use_sliding_window=True, sliding_window=10)
    ),
    "deepseek-v3": lambda: _deepseek_v3(rope_parameters=_YARN),
    "deepseek-v3-one-group": lambda: _deepseek_v3(
        n_group=1, topk_group=1, q_lora_rank=None, rope_interleave=False, norm_topk_prob=False, attention_bias=True
    ),
    "deepseek-v3.2": lambda: DeepseekV32Config(**_indexed(n_group=4, topk_group=2, rope_parameters=_YARN)),
    "glm5": lambda: GlmMoeDsaConfig(**_indexed(attention_bias=True, indexer_types=["full", "shared", "full"])),
    "glm5-all": lambda: GlmMoeDsaConfig(**_indexed(index_topk=MAX_LENGTH, q_lora_rank=24)),
    "glm4-moe": lambda: Glm4MoeConfig(**sizes(**_CORRECTED, head_dim=16, use_qk_norm=True, num_attention_heads=6)),
    "glm4-moe-biased": lambda: Glm4MoeConfig(
        **sizes(**_CORRECTED, head_dim=20, attention_bias=True, n_group=2, topk_group=1, norm_topk_prob=False)
    ),
    "glm4-moe-lite": lambda: Glm4MoeLiteConfig(
        **sizes(num_key_value_heads=4, **_LATENT, **(_CORRECTED | {"first_k_dense_replace": None}))
    ),
    "olmoe": lambda: OlmoeConfig(**sizes(num_experts=6, num_experts_per_tok=3)),
    "olmoe-biased": lambda: OlmoeConfig(
        **sizes(num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, attention_bias=True, num_key_value_heads=4)
    ),
    "flex-olmo": lambda: FlexOlmoConfig(**sizes(num_experts=5, num_experts_per_tok=2, num_attention_heads=6)),
    "dots1": lambda: Dots1Config(
        **sizes(**_CORRECTED, head_dim=12, sliding_window=9, max_window_layers=1, n_group=3, topk_group=2)
    ),
    "exaone-moe": lambda: ExaoneMoeConfig(
        **sizes(
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            num_shared_experts=2,
            sliding_window=9,
            sliding_window_pattern=3,
            num_hidden_layers=4,
            head_dim=16,
        )
    ),
    "minimax-m2": lambda: MiniMaxM2Config(
        **sizes(num_local_experts=6, num_experts_per_tok=2, head_dim=20, rotary_dim=10, num_attention_heads=6)
    ),
    "ernie4.5-moe": lambda: Ernie4_5_MoeConfig(
        **sizes(
            moe_num_experts=6,
            moe_k=2,
            moe_intermediate_size=24,
            moe_num_shared_experts=2,
            moe_layer_end_index=2,
            moe_layer_interval=2,
            num_hidden_layers=4,
        )
    ),
    "hunyuan-moe": lambda: HunYuanMoEV1Config(
        **sizes(
            num_experts=5,
            moe_topk=2,
            head_dim=16,
            attention_bias=True,
            rope_parameters=rope("dynamic", factor=1.0, alpha=50.0),
            tie_word_embeddings=True,
        )
    ),
    "gpt-oss": lambda: GptOssConfig(
        **sizes(
            num_local_experts=5,
            num_experts_per_tok=3,
            head_dim=16,
            num_attention_heads=6,
            sliding_window=9,
            num_hidden_layers=4,
            rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
        )
    ),
    "gpt-oss-unbiased": lambda: GptOssConfig(
        **sizes(
            num_local_experts=4,
            num_experts_per_tok=2,
            head_dim=16,
            sliding_window=12,
            attention_bias=False,
            swiglu_limit=1.5,
            tie_word_embeddings=True,
        )
    ),
    "phimoe": lambda: PhimoeConfig(
        **sizes(num_local_experts=6, router_jitter_noise=0.3, rope_parameters=_LONGROPE, num_attention_heads=6)
    ),
    "phimoe-biased": lambda: PhimoeConfig(
        **sizes(
            num_local_experts=5,
            router_jitter_noise=0.1,
            attention_bias=True,
            lm_head_bias=True,
            num_attention_heads=4,
            sliding_window=None,
        )
    ),
    "cohere2-moe": lambda: Cohere2MoeConfig(
        **sizes(
            num_hidden_layers=5,
            num_experts=5,
            num_experts_per_tok=2,
            num_shared_experts=1,
            head_dim=16,
            sliding_window=9,
            sliding_window_pattern=2,
            first_k_dense_replace=1,
            prefix_dense_intermediate_size=56,
            tie_word_embeddings=True,
        )
    ),
    "cohere2-moe-sigmoid": lambda: Cohere2MoeConfig(
        **sizes(
            num_hidden_layers=3,
            num_experts=6,
            num_experts_per_tok=2,
            num_shared_experts=2,
            shared_expert_combination_strategy="sum",
            expert_selection_fn="sigmoid",
            rms_norm_eps=1e-5,
            head_dim=16,
            sliding_window=9,
            attention_bias=True,
            tie_word_embeddings=False,
        )
    ),
    "granite-moe": lambda: GraniteMoeConfig(**sizes(num_local_experts=5, attention_bias=True, **_MULTIPLIERS)),
    "granite-moe-shared": lambda: GraniteMoeSharedConfig(
        **sizes(num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=40, **_MULTIPLIERS)
    ),
    "granite-moe-swa": lambda: GraniteMoeSWAConfig(
        **sizes(num_local_experts=6, shared_intermediate_size=40, sliding_window=9, num_hidden_layers=5, **_MULTIPLIERS)
    ),
    "llama4": lambda: Llama4TextConfig(
        **sizes(
            num_hidden_layers=5,
            head_dim=16,
            num_local_experts=4,
            intermediate_size_mlp=56,
            interleave_moe_layer_step=2,
            no_rope_layer_interval=3,
            floor_scale=20,
            attention_chunk_size=MAX_LENGTH,
            num_attention_heads=6,
        )
    ),
    # Chunks that no block ends with, shorter than most prompts.
    "llama4-chunks": lambda: Llama4TextConfig(
        **sizes(
            num_hidden_layers=5, head_dim=16, num_local_experts=4, intermediate_size_mlp=56, attention_chunk_size=18
        )
    ),
    "llama4-biased": lambda: Llama4TextConfig(
        **sizes(
            head_dim=12,
            num_local_experts=5,
            num_experts_per_tok=2,
            intermediate_size_mlp=56,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            attention_bias=True,
            tie_word_embeddings=True,
            attention_chunk_size=MAX_LENGTH,
        )
    ),
    "solar-open": lambda: SolarOpenConfig(
        **sizes(**(_CORRECTED | {"first_k_dense_replace": 0}), head_dim=16, attention_bias=True)
    ),
    "mellum": lambda: MellumConfig(
        **sizes(
            **_EXPERTS,
            head_dim=16,
            num_hidden_layers=4,
            sliding_window=9,
            layer_types=["full_attention", "sliding_attention"] * 2,
            mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
        )
    ),
    "dbrx": lambda: _dbrx(
        {"kv_n_heads": 2, "clip_qkv": 1.5}, {"ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 3}
    ),
    "dbrx-unnormed": lambda: _dbrx(
        {"kv_n_heads": 4, "clip_qkv": 3},
        {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_normalize_expert_weights": None},
    ),
    "longcat-flash": _longcat,
    "longcat-flash-biased": lambda: _longcat(
        attention_bias=True, zero_expert_num=1, num_layers=1, moe_topk=2, rope_parameters=_YARN
    ),
    "axk1": lambda: AXK1Config(
        **sizes(num_key_value_heads=4, n_group=4, topk_group=2, rope_parameters=_YARN, **_LATENT, **_CORRECTED)
    ),
    "flint": lambda: FlintConfig(
        **sizes(
            **_EXPERTS,
            head_dim=16,
            num_hidden_layers=7,
            num_attention_heads=6,
            sliding_window=9,
            shared_expert_intermediate_size=40,
            mlp_only_layers=[0, 4],
        )
    ),
    "afmoe": lambda: AfmoeConfig(
        **sizes(
            **_EXPERTS,
            head_dim=16,
            num_hidden_layers=4,
            num_shared_experts=2,
            global_attn_every_n_layers=2,
            sliding_window=9,
            route_scale=1.7,
            mup_enabled=True,
        )
    ),
    "laguna": lambda: LagunaConfig(
        **sizes(
            **_EXPERTS,
            head_dim=16,
            num_hidden_layers=4,
            num_attention_heads_per_layer=[4, 8, 6, 8],
            layer_types=["full_attention", "sliding_attention"] * 2,
            sliding_window=9,
            shared_expert_intermediate_size=40,
            moe_routed_scaling_factor=1.7,
        )
    ),
    "laguna-per-channel": lambda: LagunaConfig(
        **sizes(
            **_EXPERTS,
            head_dim=20,
            attention_bias=True,
            gating="per-element",
            shared_expert_intermediate_size=24,
            mlp_layer_types=["sparse", "dense", "sparse"],
            tie_word_embeddings=True,
        )
    ),
    "mimo-v2-flash": lambda: MiMoV2FlashConfig(
        **sizes(
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            n_group=1,
            topk_group=1,
            num_hidden_layers=7,
            num_attention_heads=8,
            head_dim=20,
            v_head_dim=12,
            sliding_window=9,
            attention_bias=True,
        )
    ),
    "hy4": lambda: HYV4Config(**_indexed(num_key_value_heads=4, swiglu_limit=0.7, hc_mult=3, hc_eps=0.01)),
    "hy3": lambda: HYV3Config(**sizes(**_EXPERTS, head_dim=16, num_shared_experts=2, attention_bias=True)),
}
