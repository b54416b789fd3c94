"""Falcon."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class FalconForCausalLM(LayerNormDecoder):
    """arXiv:2311.16867."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.word_embeddings.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "attention_norm": "ln_attn",
        "feed_forward_norm": "ln_mlp",
        "self_attn": "self_attention",
        "qkv_proj": "query_key_value",
        "o_proj": "dense",
        "up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
    }
    base_prefix: ClassVar[str] = "transformer."
