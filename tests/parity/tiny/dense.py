"""Dense decoders with RMS norms and rotary embedding beyond the first families."""

from collections.abc import Callable
from typing import Any

from transformers import (
    ApertusConfig,
    ArceeConfig,
    CwmConfig,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    GraniteSWAConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HyperCLOVAXConfig,
    InternLM3Config,
    MiniCPM3Config,
    Ministral3Config,
    MinistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    SeedOssConfig,
    SmolLM3Config,
    VaultGemmaConfig,
)

from tiny.sizes import MAX_LENGTH, rope, sizes

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _longrope(original: int, **changes: Any) -> Phi3Config:
    """Rotary factors of Phi-3 for texts beyond ``original`` tokens and up to there."""
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.2, 1.9, 2.8, 4.0, 7.5]}
    parameters = rope("longrope", partial_rotary_factor=0.84, **factors)
    own = {"head_dim": 12, "original_max_position_embeddings": original, "rope_parameters": parameters}
    return Phi3Config(**sizes(**own, **changes))


def _granite4(positions: str | None, **changes: Any) -> GraniteMoeHybridConfig:
    """A model of the hybrid architecture that is neither hybrid nor has experts."""
    own = {"num_local_experts": 0, "layer_types": [_FULL] * 3, "shared_intermediate_size": 80, **_MULTIPLIERS}
    state = {"mamba_n_heads": 8, "mamba_d_head": 12}
    return GraniteMoeHybridConfig(**sizes(position_embedding_type=positions, **own, **state, **changes))


_MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2}
_OLMO3_ROPE = {
    _FULL: rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=64),
    _SLIDING: rope("default", 500.0),
}


def _minicpm3(**changes: Any) -> MiniCPM3Config:
    latent = {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
    factors = {"scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 16}
    return MiniCPM3Config(**(sizes(num_key_value_heads=4, **latent, **factors) | changes))


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "phi3": lambda: Phi3Config(**sizes()),
    "phi3-window": lambda: Phi3Config(**sizes(sliding_window=11, tie_word_embeddings=True, num_key_value_heads=4)),
    "phi3-short-rope": lambda: _longrope(MAX_LENGTH, max_position_embeddings=4 * MAX_LENGTH),
    "phi3-long-rope": lambda: _longrope(4),
    "glm": lambda: GlmConfig(**sizes(head_dim=16)),
    "glm-unbiased": lambda: GlmConfig(**sizes(head_dim=24, num_attention_heads=10, attention_bias=False)),
    "smollm3": lambda: SmolLM3Config(**sizes(num_hidden_layers=5, no_rope_layer_interval=2)),
    "smollm3-window": lambda: SmolLM3Config(
        **sizes(
            num_hidden_layers=4,
            no_rope_layers=[1, 0, 0, 1],
            use_sliding_window=True,
            sliding_window=10,
            attention_bias=True,
            tie_word_embeddings=False,
        )
    ),
    "arcee": lambda: ArceeConfig(**sizes(num_attention_heads=6, head_dim=8)),
    "arcee-biased": lambda: ArceeConfig(**sizes(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "apertus": lambda: ApertusConfig(**sizes(num_attention_heads=6)),
    "apertus-biased": lambda: ApertusConfig(**sizes(attention_bias=True, rope_parameters=rope("default"))),
    "seed-oss": lambda: SeedOssConfig(**sizes(head_dim=20)),
    "seed-oss-biased": lambda: SeedOssConfig(
        **sizes(head_dim=16, attention_bias=False, attention_out_bias=True, mlp_bias=True)
    ),
    "ernie4.5": lambda: Ernie4_5Config(**sizes(head_dim=16, num_attention_heads=6)),
    "ernie4.5-biased": lambda: Ernie4_5Config(**sizes(head_dim=12, use_bias=True, tie_word_embeddings=False)),
    "helium": lambda: HeliumConfig(**sizes(head_dim=12, attention_bias=True, mlp_bias=True)),
    "cwm": lambda: CwmConfig(**sizes(num_hidden_layers=5, head_dim=12, sliding_window=13)),
    "ministral": lambda: MinistralConfig(
        **sizes(head_dim=12, sliding_window=9, layer_types=[_SLIDING, _FULL, _SLIDING])
    ),
    "ministral3": lambda: Ministral3Config(
        **sizes(
            head_dim=16,
            sliding_window=40,
            rope_parameters=rope(
                "yarn",
                factor=8.0,
                original_max_position_embeddings=16,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.3,
            ),
        )
    ),
    "internlm3": lambda: InternLM3Config(**sizes(head_dim=16)),
    "internlm3-biased": lambda: InternLM3Config(**sizes(head_dim=16, qkv_bias=True, bias=True)),
    "gemma": lambda: GemmaConfig(**sizes(head_dim=16, num_attention_heads=6)),
    "gemma-biased": lambda: GemmaConfig(**sizes(head_dim=12, attention_bias=True, tie_word_embeddings=False)),
    "gemma2": lambda: Gemma2Config(
        **sizes(
            num_hidden_layers=4, head_dim=20, query_pre_attn_scalar=24, sliding_window=10, attn_logit_softcapping=4.0
        )
    ),
    "gemma2-uncapped": lambda: Gemma2Config(
        **sizes(head_dim=16, sliding_window=7, attn_logit_softcapping=None, final_logit_softcapping=None)
    ),
    "vaultgemma": lambda: VaultGemmaConfig(
        **sizes(head_dim=16, sliding_window=10, attn_logit_softcapping=4.0, final_logit_softcapping=3.0)
    ),
    "glm4": lambda: Glm4Config(**sizes(head_dim=16)),
    "glm4-unbiased": lambda: Glm4Config(**sizes(head_dim=24, num_attention_heads=14, attention_bias=False)),
    "minicpm3": _minicpm3,
    "minicpm3-unscaled": lambda: _minicpm3(
        q_lora_rank=None, v_head_dim=None, scale_depth=None, dim_model_base=None, attention_bias=True
    ),
    "granite-swa": lambda: GraniteSWAConfig(
        **sizes(
            num_hidden_layers=5,
            num_attention_heads=6,
            sliding_window=9,
            layer_rope_theta=[500.0, 0, 10_000.0, 500.0, 0],
            logits_scaling=4.0,
            **_MULTIPLIERS,
        )
    ),
    "granite": lambda: GraniteConfig(**sizes(logits_scaling=4.0, **_MULTIPLIERS)),
    "granite-biased": lambda: GraniteConfig(
        **sizes(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, num_attention_heads=6, **_MULTIPLIERS)
    ),
    "granite4": lambda: _granite4("rope", attention_bias=True),
    "granite4-unrotated": lambda: _granite4(None, tie_word_embeddings=True, num_attention_heads=6),
    "hyperclovax": lambda: HyperCLOVAXConfig(**sizes(head_dim=16, logits_scaling=0.5, **_MULTIPLIERS)),
    "olmo2": lambda: Olmo2Config(**sizes()),
    "olmo2-biased": lambda: Olmo2Config(**sizes(attention_bias=True, num_attention_heads=6, num_key_value_heads=1)),
    "olmo3": lambda: Olmo3Config(**sizes(layer_types=[_SLIDING, _FULL, _SLIDING], sliding_window=12)),
    "olmo3-yarn": lambda: Olmo3Config(**sizes(num_hidden_layers=4, sliding_window=8, rope_parameters=_OLMO3_ROPE)),
    "exaone4": lambda: Exaone4Config(
        **sizes(sliding_window=None, layer_types=[_FULL] * 3, num_attention_heads=6, tie_word_embeddings=True)
    ),
    "exaone4-window": lambda: Exaone4Config(**sizes(num_hidden_layers=5, sliding_window=11, sliding_window_pattern=3)),
    "hunyuan": lambda: HunYuanDenseV1Config(**sizes(head_dim=16, tie_word_embeddings=True)),
    "hunyuan-alpha-rope": lambda: HunYuanDenseV1Config(
        **sizes(head_dim=12, attention_bias=True, rope_parameters=rope("dynamic", alpha=50.0, factor=1.0))
    ),
}
