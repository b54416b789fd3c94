"""OPT."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class OPTForCausalLM(LayerNormDecoder):
    """arXiv:2205.01068."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.norm.": "model.decoder.final_layer_norm.",
        "model.": "model.decoder.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "self_attn_layer_norm",
        "o_proj": "out_proj",
        "post_attention_layernorm": "final_layer_norm",
        "mlp": "",
        "up_proj": "fc1",
        "down_proj": "fc2",
    }
