"""Baichuan 1 and 2: Llama's layer with one projection for queries, keys and values; the larger models have ALiBi."""

from collections.abc import Mapping
from typing import Any, ClassVar

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.head_terms import AttentionTerms, alibi_slopes
from octavo.layers.rotary import NO_ROPE
from octavo.models.llama import LlamaForCausalLM

_VERSION_2_VOCABULARY = 125_696
"""Nothing else in a configuration tells the second version."""


class BaichuanAttention(RotaryAttention):
    """Attention with ALiBi in layers without rotary embedding."""

    def __init__(self, config: ModelConfig, layer: int, build: Build, *, rope: str, **options: Any) -> None:
        terms = None
        if rope == NO_ROPE:
            terms = AttentionTerms(config.num_heads, build, slopes=alibi_slopes(config.num_heads))
        super().__init__(config, layer, build, rope=rope, terms=terms, **options)


class BaichuanForCausalLM(LlamaForCausalLM):
    """arXiv:2309.10305."""

    attention_type: ClassVar[type[RotaryAttention]] = BaichuanAttention
    module_names: ClassVar[Mapping[str, str]] = {"qkv_proj": "W_pack"}

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__(config, build, max_positions)
        self.lm_head.is_normalized = config.vocab_size == _VERSION_2_VOCABULARY
