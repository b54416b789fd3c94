"""Maps GGUF's tensor names to Hugging Face's, and describes how converters change weights."""

from dataclasses import dataclass

from octavo.hub.model_config import ModelConfig

EACH = "*"
"""Stands for each number in the name of a tensor that stacks several of a checkpoint's, such as those of experts."""

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA_LAYER = {**_LAYER, **_POST_NORMS, "ffn_norm": "pre_feedforward_layernorm"}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_GPT2_LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_MEGATRON_TOP = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
_MEGATRON_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}_exps": f"mlp.experts.{EACH}.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}
_POST_ATTENTION_NORM = {"post_attention_norm": "post_attention_layernorm"}
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_DRAFT_LAYER = {
    f"nextn.{name}": f"nextn.{name}"
    for name in ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_MIXTRAL = {
    **_LAYER,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": f"block_sparse_moe.experts.{EACH}.w1",
    "ffn_up_exps": f"block_sparse_moe.experts.{EACH}.w3",
    "ffn_down_exps": f"block_sparse_moe.experts.{EACH}.w2",
}
_LAYER_BY_ARCHITECTURE = {
    "llama": _MIXTRAL,
    "minimax-m2": {**_MIXTRAL, "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
    "deepseek2": {**_LAYER, **_EXPERTS, **_LATENT, **_CORRECTION, **_DRAFT_LAYER},
    "dots1": {**_LAYER, **_EXPERTS, **_CORRECTION},
    "ernie4_5-moe": {**_LAYER, **_EXPERTS, "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    "glm4moe": {**_LAYER, **_EXPERTS, **_CORRECTION, **_DRAFT_LAYER, **_POST_ATTENTION_NORM},
    "gpt-oss": {
        **_LAYER,
        **_EXPERTS,
        **_POST_ATTENTION_NORM,
        "ffn_gate_inp": "mlp.router",
        "attn_sinks.weight": "self_attn.sinks",
    },
    "granitemoe": {
        **_LAYER,
        **{f"ffn_{part}_exps": f"experts.{EACH}.{part}_proj" for part in ("gate", "up")},
        **{f"ffn_{part}_shexp": f"shared_mlp.{part}_proj" for part in ("gate", "up")},
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_down_exps": f"experts.{EACH}.output_linear",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    "olmoe": {**_LAYER, **_EXPERTS},
    "qwen2moe": {
        **_LAYER,
        **_EXPERTS,
        **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    },
    "qwen3moe": {**_LAYER, **_EXPERTS},
    "gemma2": _GEMMA_LAYER,
    "gemma3": _GEMMA_LAYER,
    "gemma3n": {
        **_GEMMA_LAYER,
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale.weight": "altup.correct_output_scale",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "laurel_l": "laurel.linear_left",
        "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm",
    },
    "olmo2": {**_LAYER, **_POST_NORMS},
    "exaone4": {**_LAYER, **_POST_NORMS},
    "phi3": {**_LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "glm4": {
        **_LAYER,
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "seed_oss": {**_LAYER, **_POST_ATTENTION_NORM},
    "hunyuan-dense": {
        **_LAYER,
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    },
    "exaone": {
        "attn_norm": "ln_1",
        "attn_q": "attn.attention.q_proj",
        "attn_k": "attn.attention.k_proj",
        "attn_v": "attn.attention.v_proj",
        "attn_output": "attn.attention.out_proj",
        "ffn_norm": "ln_2",
        "ffn_gate": "mlp.c_fc_0",
        "ffn_up": "mlp.c_fc_1",
        "ffn_down": "mlp.c_proj",
    },
    "bloom": _MEGATRON_LAYER,
    "falcon": _MEGATRON_LAYER,
    "gpt2": _GPT2_LAYER,
    "gptneox": {
        **_MEGATRON_LAYER,
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
    },
    "mpt": {
        "attn_norm": "norm_1",
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    "phi2": {**_LAYER, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    "stablelm": {**_LAYER, "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"},
    "starcoder": _GPT2_LAYER,
    "starcoder2": {**_LAYER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
_TOP_BY_ARCHITECTURE = {
    "exaone": {"token_embd": "transformer.wte", "output_norm": "transformer.ln_f", "output": "lm_head"},
    "bloom": {**_MEGATRON_TOP, "token_embd_norm": "transformer.word_embeddings_layernorm"},
    "falcon": _MEGATRON_TOP,
    "gpt2": _GPT2_TOP,
    "gptneox": {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    "gemma3n": {
        **_TOP,
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "altup_proj": f"model.altup_projections.{EACH}",
        "altup_unembd_proj": f"model.altup_unembed_projections.{EACH}",
    },
    "mpt": {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
    "phi2": {**_TOP, "output_norm": "model.final_layernorm"},
    "starcoder": _GPT2_TOP,
}
_LAYER_PREFIXES = {
    "exaone": "transformer.h",
    "bloom": "transformer.h",
    "falcon": "transformer.h",
    "gpt2": "transformer.h",
    "gptneox": "gpt_neox.layers",
    "mpt": "transformer.blocks",
    "starcoder": "transformer.h",
}
_WITH_PERMUTED_HEADS = ("llama", "internlm2", "granite", "granitemoe", "minicpm", "smollm3", "arcee", "olmo")
_WITH_SHIFTED_NORMS = ("gemma", "gemma2", "gemma3", "nemotron")


@dataclass(frozen=True, slots=True)
class GGUFConversion:
    """A converter's change to a tensor.

    Attributes:
        permuted_heads: number of heads within which rows were reordered to interleave rotary pairs; 0 if not reordered.
        offset: added to every value.
    """

    permuted_heads: int = 0
    offset: float = 0.0


def hf_name(name: str, architecture: str) -> str:
    """A tensor's name in a Hugging Face checkpoint, perhaps with :data:`EACH`; unknown names are returned unchanged."""
    stem, _, leaf = name.rpartition(".")
    top = _TOP_BY_ARCHITECTURE.get(architecture, _TOP)
    if stem in top:
        return f"{top[stem]}.{leaf}"
    prefix, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    layer = _LAYER_BY_ARCHITECTURE.get(architecture, _LAYER)
    whole = layer.get(f"{part}.{leaf}") or (f"{layer[part]}.{leaf}" if part in layer else None)
    if prefix == "blk" and index.isdigit() and whole is not None:
        return f"{_LAYER_PREFIXES.get(architecture, 'model.layers')}.{index}.{whole}"
    return name


def gguf_conversion(name: str, architecture: str, config: ModelConfig) -> GGUFConversion:
    """The converter's change to the tensor with this Hugging Face name."""
    if architecture in _WITH_SHIFTED_NORMS and name.endswith("norm.weight"):
        return GGUFConversion(offset=1.0)
    is_permuted = architecture in _WITH_PERMUTED_HEADS
    if is_permuted and ".q_proj." in name:
        return GGUFConversion(permuted_heads=config.num_heads)
    if is_permuted and ".k_proj." in name:
        return GGUFConversion(permuted_heads=config.num_kv_heads)
    return GGUFConversion()
