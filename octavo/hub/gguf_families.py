"""The metadata of GGUF files that only one family has."""

import math
import struct
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_MAX_FACTORS = 4096


def read_factors(file: GGUFFile, tensor: GGUFTensor) -> list[float]:
    """The values of a list of float32 numbers, such as divisors of rotary frequencies.

    Raises:
        UnsupportedModelError: it is something else.
        WeightsError: the file cannot be read.
    """
    count = math.prod(tensor.shape)
    if tensor.type_name != "F32" or not 1 < count <= _MAX_FACTORS:
        raise UnsupportedModelError(f"{file.path}: {tensor.name} is not a list of float32 divisors.")
    try:
        with file.path.open("rb") as data:
            data.seek(tensor.offset)
            return list(struct.unpack(f"<{count}f", data.read(tensor.num_bytes)))
    except (OSError, struct.error) as error:
        raise WeightsError(f"{file.path} cannot be read: {error}.") from None


def _llama(raw: dict[str, Any], file: GGUFFile) -> None:
    """Llama, Mistral and Mixtral share a name in GGUF; only Mixtral has experts, only Mistral a sliding window."""
    raw.setdefault("head_dim", file.metadata.get("llama.rope.dimension_count"))
    if raw.get("num_experts"):
        raw["architectures"] = ["MixtralForCausalLM"]
    elif "sliding_window" in raw:
        raw["architectures"] = ["MistralForCausalLM"]


def _gemma2(raw: dict[str, Any], file: GGUFFile) -> None:
    _set_query_scale(raw, _GEMMA2_27B_LAYERS)


def _gemma3(raw: dict[str, Any], file: GGUFFile) -> None:
    _set_query_scale(raw, _GEMMA3_27B_LAYERS)


def _gemma3n(raw: dict[str, Any], file: GGUFFile) -> None:
    """Some sizes are visible in the tensors only; sparsity is in deviations of a normal distribution from its mean."""
    copy_keys(
        raw,
        file,
        "gemma3n",
        altup_active_idx="altup.active_idx",
        altup_num_inputs="altup.num_inputs",
        hidden_size_per_layer_input="embedding_length_per_layer_input",
        num_kv_shared_layers="attention.shared_kv_layers",
    )
    _set_layer_types(raw, file, "gemma3n")
    deviations = file.metadata.get("gemma3n.activation_sparsity_scale")
    if isinstance(deviations, list):
        raw["activation_sparsity_pattern"] = [NormalDist().cdf(number) for number in deviations]
    for key, name in {"vocab_size_per_layer_input": "per_layer_token_embd", "laurel_rank": "blk.0.laurel_l"}.items():
        tensor = file.tensors.get(f"{name}.weight")
        raw[key] = None if tensor is None else tensor.shape[0]
    projections = file.tensors.get("altup_proj.weight")
    raw["num_stacked"] = None if projections is None else projections.shape[0]


def _set_query_scale(raw: dict[str, Any], largest: int) -> None:
    """Scores are divided by the root of the head size, but in the largest model by that of hidden size over heads."""
    scalar = raw.get("head_dim")
    hidden_size, num_heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    is_largest = raw.get("num_hidden_layers") == largest
    if is_largest and isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        scalar = hidden_size // num_heads
    raw["query_pre_attn_scalar"] = scalar


def _phi3(raw: dict[str, Any], file: GGUFFile) -> None:
    """A window of 0 is none; the original length stands beside the scaling, as in Phi-3's config.json."""
    raw["sliding_window"] = raw.get("sliding_window") or None
    set_partial_rotary_factor(raw, file, "phi3")
    original = file.metadata.get("phi3.rope.scaling.original_context_length")
    if original is not None:
        raw["original_max_position_embeddings"] = original


def _glm4(raw: dict[str, Any], file: GGUFFile) -> None:
    if file.metadata.get("glm4.rope.dimension_sections"):
        raise UnsupportedModelError(f"{file.path} holds a model with three-part positions, which is not supported.")
    set_partial_rotary_factor(raw, file, "glm4")


def set_partial_rotary_factor(raw: dict[str, Any], file: GGUFFile, architecture: str) -> None:
    """Compute the share of a head that rotates; GGUF has its size."""
    rotary_dim = file.metadata.get(f"{architecture}.rope.dimension_count")
    head_dim = raw.get("head_dim")
    hidden_size, num_heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if head_dim is None and isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        head_dim = hidden_size // num_heads
    if isinstance(rotary_dim, int) and isinstance(head_dim, int) and 0 < rotary_dim <= head_dim:
        # Half a dimension more, since the product with the head size is rounded down later.
        raw["partial_rotary_factor"] = min((rotary_dim + 0.5) / head_dim, 1.0)


def _granite(raw: dict[str, Any], file: GGUFFile) -> None:
    set_granite_scales(raw, file, "granite")


def set_granite_scales(raw: dict[str, Any], file: GGUFFile, architecture: str) -> None:
    """Granite's four factors."""
    copy_keys(
        raw,
        file,
        architecture,
        attention_multiplier="attention.scale",
        embedding_multiplier="embedding_scale",
        residual_multiplier="residual_scale",
        logits_scaling="logit_scale",
    )


def _minicpm(raw: dict[str, Any], file: GGUFFile) -> None:
    """Factors that a file lacks are those of the first MiniCPM."""
    num_layers, hidden_size = raw.get("num_hidden_layers"), raw.get("hidden_size")
    residual_scale = file.metadata.get("minicpm.residual_scale")
    logit_scale = file.metadata.get("minicpm.logit_scale")
    raw["scale_emb"] = file.metadata.get("minicpm.embedding_scale", 12.0)
    raw["scale_depth"], raw["dim_model_base"] = 1.4, 256
    if isinstance(residual_scale, float) and isinstance(num_layers, int):
        raw["scale_depth"] = residual_scale * math.sqrt(num_layers)
    if isinstance(logit_scale, float) and isinstance(hidden_size, int) and logit_scale > 0:
        raw["dim_model_base"] = hidden_size / logit_scale


def _olmo2(raw: dict[str, Any], file: GGUFFile) -> None:
    """OLMo 2 and 3 share a name in GGUF; only OLMo 3 has windows."""
    if "sliding_window" in raw:
        raw["architectures"] = ["Olmo3ForCausalLM"]
        _set_layer_types(raw, file, "olmo2")


def _exaone4(raw: dict[str, Any], file: GGUFFile) -> None:
    raw.setdefault("sliding_window", None)
    _set_layer_types(raw, file, "exaone4")


def _set_layer_types(raw: dict[str, Any], file: GGUFFile, architecture: str) -> None:
    """Which layers have windows, where a file has a list of it."""
    pattern = file.metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        raw["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]


def _seed_oss(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["attention_out_bias"] = "blk.0.attn_output.bias" in file.tensors


def copy_keys(raw: dict[str, Any], file: GGUFFile, architecture: str, **names: str) -> dict[str, Any]:
    """Copy what the file has of some keys, Hugging Face's names → GGUF's, into ``raw``, which is returned."""
    for name, key in names.items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None:
            raw[name] = value
    return raw


def _gptneox(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "gptneox", use_parallel_residual="use_parallel_residual")
    raw["attention_bias"] = "blk.0.attn_qkv.bias" in file.tensors
    set_partial_rotary_factor(raw, file, "gptneox")


def _mpt(raw: dict[str, Any], file: GGUFFile) -> None:
    attention: dict[str, Any] = {}
    copy_keys(attention, file, "mpt", clip_qkv="attention.clamp_kqv", alibi_bias_max="attention.max_alibi_bias")
    raw["attn_config"] = attention


def _falcon(raw: dict[str, Any], file: GGUFFile) -> None:
    """Only the newer architecture has several key/value heads; its models with two norms per layer are rejected."""
    if "blk.0.attn_norm_2.weight" in file.tensors:
        raise UnsupportedModelError(f"{file.path} holds a Falcon with two norms in a layer, which is not supported.")
    num_kv_heads = raw.get("num_key_value_heads") or 1
    raw |= {"num_kv_heads": num_kv_heads, "new_decoder_architecture": num_kv_heads != 1, "num_ln_in_parallel_attn": 1}


def _phi2(raw: dict[str, Any], file: GGUFFile) -> None:
    set_partial_rotary_factor(raw, file, "phi2")


def _stablelm(raw: dict[str, Any], file: GGUFFile) -> None:
    """Norms, biases and parallel parts are visible in the tensors only."""
    raw["use_qkv_bias"] = raw["attention_bias"]
    raw["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file.tensors
    raw["qk_layernorm"] = "blk.0.attn_q_norm.weight" in file.tensors
    set_partial_rotary_factor(raw, file, "stablelm")


def _command_r(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "command-r", logit_scale="logit_scale")
    raw["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors


def _cohere2(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "cohere2", logit_scale="logit_scale")


def _nemotron(raw: dict[str, Any], file: GGUFFile) -> None:
    raw["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    set_partial_rotary_factor(raw, file, "nemotron")


def _olmo(raw: dict[str, Any], file: GGUFFile) -> None:
    copy_keys(raw, file, "olmo", clip_qkv="attention.clamp_kqv")


ADJUSTMENTS: dict[str, Callable[[dict[str, Any], GGUFFile], None]] = {
    "llama": _llama,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "phi3": _phi3,
    "glm4": _glm4,
    "granite": _granite,
    "minicpm": _minicpm,
    "olmo2": _olmo2,
    "exaone4": _exaone4,
    "seed_oss": _seed_oss,
    "gptneox": _gptneox,
    "mpt": _mpt,
    "falcon": _falcon,
    "phi2": _phi2,
    "stablelm": _stablelm,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "nemotron": _nemotron,
    "olmo": _olmo,
}
"""GGUF's name of an architecture → function that completes the Hugging Face configuration in place."""
