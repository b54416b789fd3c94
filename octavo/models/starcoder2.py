"""StarCoder2."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class Starcoder2ForCausalLM(LayerNormDecoder):
    """arXiv:2402.19173."""

    module_names: ClassVar[Mapping[str, str]] = {"up_proj": "c_fc", "down_proj": "c_proj"}
