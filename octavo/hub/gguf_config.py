"""Converts a GGUF file's metadata to the contents of config.json and generation_config.json."""

from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.gguf_experts import EXPERT_FAMILIES, EXPERT_KEYS
from octavo.hub.gguf_families import FAMILIES, own_value, read_factors
from octavo.hub.gguf_names import EACH, hf_name
from octavo.tokenization.gguf_file import GGUFFile

_FAMILIES = FAMILIES | EXPERT_FAMILIES
_WITH_EXPERTS = ("llama", *EXPERT_FAMILIES)

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
    **EXPERT_KEYS,
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
_PLAIN = (*_DTYPES, "BF16")
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
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedModelError(
            f"{file.path} holds the architecture {quote(architecture)}; of GGUF files, {known} are supported."
        )
    _check_supported(file, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModelError(f"{file.path} holds no token embedding; it is not a language model.")
    raw: dict[str, Any] = {
        "architectures": [_FAMILIES[architecture].architecture],
        "dtype": _DTYPES.get(embedding.type_name, "bfloat16"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [file.metadata[key] for key in _EOS_KEYS if key in file.metadata],
        "rope_scaling": _rope_scaling(file),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "is_from_gguf": True,
    }
    types = _layer_types(file, architecture)
    if types:
        raw["quantization_config"] = {"quant_method": "gguf", "types": types}
    for key, hf_key in _KEYS.items():
        value = own_value(file, key)
        if value is not None:
            raw[hf_key] = value
    num_draft_layers = raw.get("num_nextn_predict_layers")
    if isinstance(num_draft_layers, int) and isinstance(raw.get("num_hidden_layers"), int):
        raw["num_hidden_layers"] -= num_draft_layers
    _FAMILIES[architecture].complete(raw, file)
    return raw


def _layer_types(file: GGUFFile, architecture: str) -> dict[str, str]:
    """The types of quantised matrices, by the names of their layers; with :data:`EACH` of stacked ones."""
    names = {name: hf_name(name, architecture).removesuffix(".weight") for name in file.tensors}
    return {
        names[name]: tensor.type_name
        for name, tensor in file.tensors.items()
        if tensor.type_name not in _PLAIN and len(tensor.shape) == (3 if EACH in names[name] else 2)
    }


def gguf_generation_config(file: GGUFFile) -> dict[str, Any]:
    """Sampling defaults of a GGUF file, with generation_config.json's names."""
    given = {name: file.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING_KEYS.items()}
    return {name: value for name, value in given.items() if value is not None}


def _check_supported(file: GGUFFile, architecture: str) -> None:
    num_parts = file.metadata.get("split.count")
    if isinstance(num_parts, int) and num_parts > 1:
        raise UnsupportedModelError(
            f"{file.path} is one of {num_parts} parts of a model; merge them first, with llama.cpp's "
            "llama-gguf-split --merge."
        )
    if own_value(file, "expert_count") and architecture not in _WITH_EXPERTS:
        raise UnsupportedModelError(f"{file.path} holds {architecture!r} with experts, which is not supported.")


def _rope_scaling(file: GGUFFile) -> dict[str, Any] | None:
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        # Llama 3.1's scaling is stored as each frequency's divisor: 1 for the fastest, the factor for the slowest.
        return {**_LLAMA3_SCALING, "factor": max(read_factors(file, divisors))}
    factors = {name: file.tensors.get(f"rope_factors_{name}.weight") for name in ("short", "long")}
    lists = {f"{name}_factor": read_factors(file, tensor) for name, tensor in factors.items() if tensor is not None}
    kind = "longrope" if lists else own_value(file, "rope.scaling.type")
    if kind in (None, "none"):
        return None
    scaling = {
        **lists,
        "rope_type": kind,
        "factor": own_value(file, "rope.scaling.factor"),
        "original_max_position_embeddings": own_value(file, "rope.scaling.original_context_length"),
        "attention_factor": own_value(file, "rope.scaling.attn_factor")
        or own_value(file, "rope.scaling.yarn_attn_factor"),
        "beta_fast": own_value(file, "rope.scaling.yarn_beta_fast"),
        "beta_slow": own_value(file, "rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in scaling.items() if value is not None}
