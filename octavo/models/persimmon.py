"""Persimmon."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class PersimmonForCausalLM(LayerNormDecoder):
    """Adept's model of 2023."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"model.norm.": "model.final_layernorm."}
    module_names: ClassVar[Mapping[str, str]] = {
        "qkv_proj": "query_key_value",
        "o_proj": "dense",
        "up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
    }
