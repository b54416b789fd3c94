"""MPT."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class MptForCausalLM(LayerNormDecoder):
    """MosaicML's models of 2023."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.norm_f.",
        "model.layers.": "transformer.blocks.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "norm_1",
        "self_attn": "attn",
        "qkv_proj": "Wqkv",
        "o_proj": "out_proj",
        "post_attention_layernorm": "norm_2",
        "mlp": "ffn",
    }
    base_prefix: ClassVar[str] = "transformer."
