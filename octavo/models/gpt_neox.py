"""GPT-NeoX, Pythia, and StableLM's first models."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class GPTNeoXForCausalLM(LayerNormDecoder):
    """arXiv:2204.06745."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "gpt_neox.embed_in.",
        "model.norm.": "gpt_neox.final_layer_norm.",
        "model.": "gpt_neox.",
        "lm_head.": "embed_out.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
        "self_attn": "attention",
        "qkv_proj": "query_key_value",
        "o_proj": "dense",
        "up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
    }
    base_prefix: ClassVar[str] = "gpt_neox."
