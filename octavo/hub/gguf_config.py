"""A GGUF file's metadata, said in the words of a config.json."""

from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.tokenization.gguf_file import GGUFFile

_FAMILIES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral3": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
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
    "vocab_size": "vocab_size",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}


def gguf_raw_config(file: GGUFFile) -> dict[str, Any]:
    """The configuration of the model in a GGUF file, with Hugging Face's names.

    Raises:
        UnsupportedModelError: the architecture is not known, or the file holds no tensors of a decoder.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in _FAMILIES:
        raise UnsupportedModelError(
            f"{file.path} holds the architecture {architecture!r}; of GGUF files, {', '.join(_FAMILIES)} are supported."
        )
    model_type, name = _FAMILIES[architecture]
    raw: dict[str, Any] = {"architectures": [name], "model_type": model_type, "dtype": "bfloat16"}
    for key, hf_key in _KEYS.items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None:
            raw[hf_key] = value
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModelError(f"{file.path} holds no token embedding; it is not a language model.")
    raw["vocab_size"] = embedding.shape[0]
    raw["tie_word_embeddings"] = "output.weight" not in file.tensors
    raw["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    raw["eos_token_id"] = _eos_ids(file)
    _add_family(raw, file, architecture)
    _add_rope(raw, file, architecture)
    return raw


def _add_family(raw: dict[str, Any], file: GGUFFile, architecture: str) -> None:
    if architecture == "llama":
        # One name for both: Mistral's window, where it has one, is written into newer files.
        raw.setdefault("head_dim", file.metadata.get("llama.rope.dimension_count"))
        if "sliding_window" in raw:
            raw.update(model_type="mistral", architectures=["MistralForCausalLM"])
        raw["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if architecture == "gemma3":
        raw["hidden_activation"] = "gelu_pytorch_tanh"
        # The converters write the head size only; Gemma 3's larger models scale by another number (27B).
        is_largest = raw.get("num_hidden_layers") == 62 and raw.get("hidden_size")
        raw["query_pre_attn_scalar"] = (
            raw["hidden_size"] // raw["num_attention_heads"] if is_largest else raw.get("head_dim", 256)
        )


def _add_rope(raw: dict[str, Any], file: GGUFFile, architecture: str) -> None:
    kind = file.metadata.get(f"{architecture}.rope.scaling.type")
    factor = file.metadata.get(f"{architecture}.rope.scaling.factor")
    if kind in ("linear", "yarn") and factor:
        raw["rope_scaling"] = {"rope_type": kind, "factor": factor}
        original = file.metadata.get(f"{architecture}.rope.scaling.original_context_length")
        if original:
            raw["rope_scaling"]["original_max_position_embeddings"] = original
    if "rope_freqs.weight" in file.tensors:
        # Llama 3.1 and later: the frequencies' divisors are stored; they follow from these published numbers.
        raw["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": 32.0 if raw["tie_word_embeddings"] else 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }


def _eos_ids(file: GGUFFile) -> list[int]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return [value for key in keys if isinstance(value := file.metadata.get(key), int)]
