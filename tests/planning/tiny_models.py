"""Small model configurations of every family."""

from octavo.hub.families.gemma import GemmaFields
from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
}


def tiny_config(
    architecture: str = "LlamaForCausalLM",
    *,
    num_layers: int = 3,
    sliding: tuple[int, ...] = (),
    window: int | None = None,
    max_positions: int = 512,
    tie_word_embeddings: bool = True,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    dtype: str = "float32",
) -> ModelConfig:
    """A decoder of hidden size 64; ``sliding`` names the layers with the window."""
    kinds: tuple[LayerType, ...] = tuple(
        "sliding_attention" if layer in sliding else "full_attention" for layer in range(num_layers)
    )
    rope = RopeConfig(10_000.0)
    is_gemma = architecture.startswith("Gemma")
    gemma = GemmaFields(attention_bias, 16, has_post_norms=True, has_head_norms=True, local_rope=rope)
    own = gemma if is_gemma else LlamaFields(attention_bias, mlp_bias)
    return ModelConfig(
        architecture=architecture,
        model_type=FAMILIES.get(architecture, "other"),
        hidden_size=64,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=256,
        max_position_embeddings=max_positions,
        rms_norm_eps=1e-6,
        rope=rope,
        layer_types=kinds,
        sliding_window=window,
        tie_word_embeddings=tie_word_embeddings,
        hidden_act="gelu_pytorch_tanh" if is_gemma else "silu",
        dtype=dtype,
        eos_token_ids=(),
        own=own,
    )
