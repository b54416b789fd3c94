"""Ministral 3: Mistral with a factor on queries that grows with their position."""

from typing import ClassVar

from octavo.hub.families.llama import LlamaFields
from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.attention_variants import ScaledQueryAttention
from octavo.layers.decoder import RotaryAttention
from octavo.layers.rotary import QUERY_SCALE
from octavo.models.llama import LlamaForCausalLM


class Ministral3ForCausalLM(LlamaForCausalLM):
    """arXiv:2601.08584."""

    attention_type: ClassVar[type[RotaryAttention]] = ScaledQueryAttention

    def tables(self, config: ModelConfig, own: LlamaFields) -> dict[str, RopeConfig | QueryScaling | None]:
        """See :meth:`LlamaForCausalLM.tables`."""
        params = config.rope.params
        length = params.get("original_max_position_embeddings") or config.max_position_embeddings
        scaling = QueryScaling(params.get("llama_4_scaling_beta") or 0.0, length)
        return super().tables(config, own) | {QUERY_SCALE: scaling}
