"""EXAONE 3: Llama's layer under other names."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.llama import LlamaForCausalLM


class ExaoneForCausalLM(LlamaForCausalLM):
    """arXiv:2408.03541, arXiv:2412.04862."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "ln_1",
        "self_attn": "attn.attention",
        "o_proj": "out_proj",
        "post_attention_layernorm": "ln_2",
        "gate_proj": "c_fc_0",
        "up_proj": "c_fc_1",
        "down_proj": "c_proj",
    }
