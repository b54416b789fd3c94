"""Hunyuan (dense): Llama's layer with norms of each head's query and key after the rotation."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.attention_variants import LateNormAttention
from octavo.layers.decoder import RotaryAttention
from octavo.layers.rotary import NO_ROPE
from octavo.models.llama import LlamaForCausalLM


class HunYuanDenseV1ForCausalLM(LlamaForCausalLM):
    """Tencent's Hunyuan 0.5B to 7B."""

    attention_type: ClassVar[type[RotaryAttention]] = LateNormAttention
    module_names: ClassVar[Mapping[str, str]] = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}

    def tables(self, config: ModelConfig, own: LlamaFields) -> dict[str, RopeConfig | QueryScaling | None]:
        """See :meth:`LlamaForCausalLM.tables`."""
        return super().tables(config, own) | {NO_ROPE: None}
