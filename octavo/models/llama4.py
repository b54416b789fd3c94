"""Llama 4 (text): attention within chunks, experts that weight what they get, layers without positions."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from octavo.hub.families.llama4 import Llama4Fields
from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.attention_variants import ScaledQueryAttention
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention
from octavo.layers.moe import feed_forward
from octavo.layers.norm import RMSNorm, UnitRMSNorm
from octavo.layers.rotary import MAIN_ROPE, NO_ROPE, QUERY_SCALE
from octavo.models.base import DecoderLM


class Llama4ForCausalLM(DecoderLM):
    """Scout and Maverick's language model."""

    module_names: ClassVar[Mapping[str, str]] = {
        "mlp": "feed_forward",
        "gate": "router",
        "shared_experts": "shared_expert",
    }

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Llama4Fields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            options = {"qkv_bias": own.attention_bias, "output_bias": own.attention_bias}
            attention = self._attention(config, own, index, build.at("self_attn"), **options)
            return PreNormLayer(attention, feed_forward(config, own.experts, index, build.at("mlp")), norm)

        tables: dict[str, RopeConfig | QueryScaling | None] = {MAIN_ROPE: config.rope, NO_ROPE: None}
        if own.query_scaling is not None:
            tables[QUERY_SCALE] = own.query_scaling
        super().__init__(config, build, layer, max_positions, ropes=tables)

    def _attention(
        self, config: ModelConfig, own: Llama4Fields, index: int, build: Build, **options: Any
    ) -> RotaryAttention:
        if index in own.unrotated:
            kind = RotaryAttention if own.query_scaling is None else ScaledQueryAttention
            return kind(config, index, build, rope=NO_ROPE, **options)
        kind = _UnitNormAttention if own.has_query_norms else RotaryAttention
        return kind(config, index, build, is_interleaved=True, chunk=own.chunk, **options)


class _UnitNormAttention(RotaryAttention):
    """Attention with norms of each head's query and key that have no weights.

    The model norms after the rotation; without weights that is the same, as a rotation keeps lengths.
    """

    def __init__(self, config: ModelConfig, layer: int, build: Build, **options: Any) -> None:
        super().__init__(config, layer, build, **options)
        self.q_norm = self.k_norm = UnitRMSNorm(config.head_dim, config.rms_norm_eps)
