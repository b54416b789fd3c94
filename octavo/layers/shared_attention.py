"""Attention of layers that share the keys and values of one of them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import DeferredNorm, HeadNorms, RopeTables
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.decoder import RotaryAttention
from octavo.layers.norm import RMSNorm, UnitRMSNorm


class ValueNormAttention(RotaryAttention):
    """Attention with norms of each head's query and key, and of its value one without a weight.

    Args:
        is_shared: whether later layers attend to its keys and values; see :class:`SharedKeysAttention`.
    """

    def __init__(self, config: ModelConfig, layer: int, build: Build, *, is_shared: bool, **options: Any) -> None:
        super().__init__(config, layer, build, head_norm=RMSNorm, **options)
        self.v_norm = UnitRMSNorm(config.head_dim, config.rms_norm_eps)
        self.is_shared = is_shared

    def forward(
        self, x: torch.Tensor | DeferredNorm, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> torch.Tensor:
        """See :meth:`RotaryAttention.forward`."""
        qkv, rope, norms = self.prepare(self.qkv_proj(x), ropes)
        if self.is_shared:
            step.new_keys[self.attention.name] = qkv[:, self.sizes[0] :].clone()  # the kernels overwrite it
        return self.o_proj(self.attention(qkv, rope, norms, step))

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`."""
        queries_and_keys, values = qkv.split((sum(self.sizes[:2]), self.sizes[2]), dim=-1)
        normed = self.v_norm(values.unflatten(-1, (-1, self.head_dim))).flatten(1)
        return torch.cat((queries_and_keys, normed), -1), ropes[self.rope], self.head_norms


class SharedKeysAttention(nn.Module):
    """Attention to the keys and values of an earlier layer, with queries of its own.

    Kernels get the earlier layer's keys and values of the step beside the queries, and store them once more where they
    are, with the same bits: so no kernel needs another form.

    Args:
        source: the earlier layer's attention.
    """

    _source: ValueNormAttention

    def __init__(self, config: ModelConfig, build: Build, source: ValueNormAttention, *, bias: bool) -> None:
        super().__init__()
        assert source.is_shared, "it keeps the keys and values of the step"
        heads, head_dim = config.num_heads, config.head_dim
        self.q_proj = build.linear(
            "q_proj", config.hidden_size, heads * head_dim, bias=bias, split="column", head_size=head_dim
        )
        self.o_proj = build.linear("o_proj", heads * head_dim, config.hidden_size, bias=bias, split="row")
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        own = source.attention
        self.attention = Attention(build.name, own.spec, build, own.window, of=own.name)
        object.__setattr__(self, "_source", source)  # not a submodule

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        source = self._source
        assert source.k_norm is not None, "its heads have norms"
        norms = HeadNorms(self.q_norm.weight, source.k_norm.weight, self.q_norm.eps)
        qkv = torch.cat((self.q_proj(x), step.new_keys[self.attention.name]), -1)
        return self.o_proj(self.attention(qkv, ropes[source.rope], norms, step))
