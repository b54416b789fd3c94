"""Phi-1, Phi-1.5 and Phi-2."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class PhiForCausalLM(LayerNormDecoder):
    """arXiv:2306.11644, arXiv:2309.05463."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"model.norm.": "model.final_layernorm."}
    module_names: ClassVar[Mapping[str, str]] = {"o_proj": "dense", "up_proj": "fc1", "down_proj": "fc2"}
