"""Granite with sliding windows, attention sinks, and a base of the rotary embedding for each layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import nn

from octavo.hub.families.granite import GraniteFields
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.head_terms import AttentionTerms
from octavo.models.granite import GraniteForCausalLM, GraniteMoeForCausalLM


class GraniteSWAForCausalLM(GraniteForCausalLM):
    """IBM's Granite Swash, dense."""

    def tables(self, config: ModelConfig, own: GraniteFields) -> dict[str, RopeConfig | None]:
        """See :meth:`GraniteForCausalLM.tables`; a base of None is a layer without positions."""
        return {
            _table(own, base): None if base is None else replace(config.rope, theta=base) for base in own.rope_bases
        }

    def attention(self, config: ModelConfig, own: GraniteFields, index: int, build: Build) -> nn.Module:
        """See :meth:`GraniteForCausalLM.attention`."""
        return RotaryAttention(
            config,
            index,
            build,
            rope=_table(own, own.rope_bases[index]),
            qkv_bias=own.attention_bias,
            output_bias=own.attention_bias,
            scale=own.attention_multiplier,
            terms=AttentionTerms(config.num_heads, build, has_sinks=True),
        )


class GraniteMoeSWAForCausalLM(GraniteSWAForCausalLM, GraniteMoeForCausalLM):
    """IBM's Granite Swash with experts."""

    module_names: ClassVar[Mapping[str, str]] = {
        **GraniteMoeForCausalLM.module_names,
        "gate": "block_sparse_moe.router",
        "expert_gate_up": "block_sparse_moe.experts.gate_up_proj",
        "expert_down": "block_sparse_moe.experts.down_proj",
    }


def _table(own: GraniteFields, base: float | None) -> str:
    """The name of the rotary table with a base."""
    return f"base_{own.rope_bases.index(base)}"
