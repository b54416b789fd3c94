"""GPT-J and CodeGen."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.layer_norm_decoder import LayerNormDecoder


class GPTJForCausalLM(LayerNormDecoder):
    """Mesh-Transformer-JAX (Wang, 2021); arXiv:2203.13474."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "ln_1",
        "self_attn": "attn",
        "o_proj": "out_proj",
        "up_proj": "fc_in",
        "down_proj": "fc_out",
    }
    base_prefix: ClassVar[str] = "transformer."
