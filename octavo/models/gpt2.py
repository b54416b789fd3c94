"""GPT-2, and GPTBigCode (StarCoder 1), which has one key/value head."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class GPT2LMHeadModel(LayerNormDecoder):
    """Language Models are Unsupervised Multitask Learners (Radford et al., 2019); arXiv:2305.06161."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.wte.",
        "model.embed_positions.": "transformer.wpe.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "ln_1",
        "self_attn": "attn",
        "qkv_proj": "c_attn",
        "o_proj": "c_proj",
        "post_attention_layernorm": "ln_2",
        "up_proj": "c_fc",
        "down_proj": "c_proj",
    }
    base_prefix: ClassVar[str] = "transformer."
