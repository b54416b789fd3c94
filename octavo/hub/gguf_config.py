"""A GGUF file's metadata converted to a config.json and a generation_config.json."""

import math
import struct
from typing import Any

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.config_values import shown
from octavo.hub.gguf_names import hf_name
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}

_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}

_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_DTYPES = {"F32": "float32", "F16": "float16"}
_GEMMA3_27B_LAYERS = 62
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def gguf_raw_config(file: GGUFFile) -> dict[str, Any]:
    """The configuration of the model in a GGUF file, with Hugging Face's names.

    Raises:
        UnsupportedModelError: the architecture is not known, or the file holds no tensors of a decoder.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnsupportedModelError(
            f"{file.path} holds the architecture {shown(architecture)}; of GGUF files, {known} are supported."
        )
    _check_whole(file, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModelError(f"{file.path} holds no token embedding; it is not a language model.")
    raw: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "dtype": _DTYPES.get(embedding.type_name, "bfloat16"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [file.metadata[key] for key in _EOS_KEYS if key in file.metadata],
        "rope_scaling": _rope_scaling(file, architecture),
    }
    types = _layer_types(file, architecture)
    if types:
        raw["quantization_config"] = {"quant_method": "gguf", "types": types}
    for key, hf_key in _KEYS.items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None:
            raw[hf_key] = value
    if architecture == "llama":
        _say_llama(raw, file)
    elif architecture == "gemma3":
        _say_gemma3(raw)
    return raw


def _layer_types(file: GGUFFile, architecture: str) -> dict[str, str]:
    """The types of quantised matrices, by the names of their layers."""
    return {
        hf_name(name, architecture).removesuffix(".weight"): tensor.type_name
        for name, tensor in file.tensors.items()
        if len(tensor.shape) == 2 and tensor.type_name.startswith("Q")
    }


def gguf_generation_config(file: GGUFFile) -> dict[str, Any]:
    """Sampling defaults of a GGUF file, with generation_config.json's names."""
    given = {name: file.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING_KEYS.items()}
    return {name: value for name, value in given.items() if value is not None}


def _check_whole(file: GGUFFile, architecture: str) -> None:
    num_parts = file.metadata.get("split.count")
    if isinstance(num_parts, int) and num_parts > 1:
        raise UnsupportedModelError(
            f"{file.path} is one of {num_parts} parts of a model; merge them first, with llama.cpp's "
            "llama-gguf-split --merge."
        )
    if file.metadata.get(f"{architecture}.expert_count"):
        raise UnsupportedModelError(f"{file.path} holds a mixture of experts, which is not supported.")


def _say_llama(raw: dict[str, Any], file: GGUFFile) -> None:
    """Llama and Mistral share a name in GGUF; only Mistral has a sliding window."""
    raw.setdefault("head_dim", file.metadata.get("llama.rope.dimension_count"))
    if "sliding_window" in raw:
        raw["architectures"] = ["MistralForCausalLM"]
    raw["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


def _say_gemma3(raw: dict[str, Any]) -> None:
    """Scores are divided by the root of the head size, but in the largest model by that of hidden size over heads."""
    scalar = raw.get("head_dim")
    hidden_size, num_heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    is_largest = raw.get("num_hidden_layers") == _GEMMA3_27B_LAYERS
    if is_largest and isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        scalar = hidden_size // num_heads
    raw["query_pre_attn_scalar"] = scalar


def _rope_scaling(file: GGUFFile, architecture: str) -> dict[str, Any] | None:
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        return _llama3_scaling(file, divisors)
    prefix = f"{architecture}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type")
    if kind in (None, "none"):
        return None
    scaling = {
        "rope_type": kind,
        "factor": file.metadata.get(f"{prefix}.factor"),
        "original_max_position_embeddings": file.metadata.get(f"{prefix}.original_context_length"),
        "attention_factor": file.metadata.get(f"{prefix}.attn_factor"),
    }
    return {key: value for key, value in scaling.items() if value is not None}


def _llama3_scaling(file: GGUFFile, divisors: GGUFTensor) -> dict[str, Any]:
    """Llama 3.1's scaling is stored as each frequency's divisor: 1 for the fastest, the factor for the slowest."""
    if divisors.type_name != "F32" or not 1 < math.prod(divisors.shape) <= 4096:
        raise UnsupportedModelError(f"{file.path}: rope_freqs.weight is not a list of float32 divisors.")
    try:
        with file.path.open("rb") as data:
            data.seek(divisors.offset)
            values = struct.unpack(f"<{math.prod(divisors.shape)}f", data.read(divisors.num_bytes))
    except (OSError, struct.error) as error:
        raise WeightsError(f"{file.path} cannot be read: {error}.") from None
    return {**_LLAMA3_SCALING, "factor": max(values)}
