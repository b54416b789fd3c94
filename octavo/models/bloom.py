"""BLOOM."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class BloomForCausalLM(LayerNormDecoder):
    """arXiv:2211.05100."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.word_embeddings.",
        "model.embed_norm.": "transformer.word_embeddings_layernorm.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "self_attn": "self_attention",
        "qkv_proj": "query_key_value",
        "o_proj": "dense",
        "up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
    }
    base_prefix: ClassVar[str] = "transformer."
