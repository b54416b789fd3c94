"""InternLM2: Llama's layer under other names, with queries, keys and values stored together by key/value head."""

from collections.abc import Mapping
from typing import Any, ClassVar

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.qkv import by_head
from octavo.models.llama import LlamaForCausalLM


class InternLM2Attention(RotaryAttention):
    """Attention with the order of InternLM2's checkpoints."""

    def __init__(self, config: ModelConfig, layer: int, build: Build, **options: Any) -> None:
        super().__init__(config, layer, build, fused_order=by_head, **options)


class InternLM2ForCausalLM(LlamaForCausalLM):
    """arXiv:2403.17297."""

    attention_type: ClassVar[type[RotaryAttention]] = InternLM2Attention
    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "model.tok_embeddings.",
        "lm_head.": "output.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "attention_norm",
        "self_attn": "attention",
        "qkv_proj": "wqkv",
        "o_proj": "wo",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
    }
