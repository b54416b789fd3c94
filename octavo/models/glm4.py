"""GLM-4-0414: GLM-4 with norms before and after each part, which its checkpoints call otherwise."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.llama import LlamaForCausalLM


class Glm4ForCausalLM(LlamaForCausalLM):
    """arXiv:2406.12793."""

    module_names: ClassVar[Mapping[str, str]] = {
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    }
