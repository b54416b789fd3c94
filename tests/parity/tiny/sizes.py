"""What the tiny models share: a vocabulary, a length, usual sizes."""

from typing import Any

VOCAB_SIZE = 211
MAX_LENGTH = 256


def sizes(**changes: Any) -> dict[str, Any]:
    """Sizes of a decoder, by Hugging Face's usual names."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | changes


def rope(kind: str, theta: float = 10_000.0, **params: float) -> dict[str, Any]:
    """``rope_parameters`` of a kind of scaling."""
    return {"rope_type": kind, "rope_theta": theta, **params}
