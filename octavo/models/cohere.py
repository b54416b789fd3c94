"""Command R, R+ and R7B."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class CohereForCausalLM(LayerNormDecoder):
    """Layers in parallel parts; in Command R7B, those of full attention have no positions."""

    module_names: ClassVar[Mapping[str, str]] = {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}
