"""Attention whose values have fewer channels than its keys."""

from collections.abc import Mapping

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import NO_TERMS, AttentionSpec, RopeTables
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.head_terms import AttentionTerms
from octavo.parallel import Section


class NarrowValueAttention(nn.Module):
    """Grouped-query attention with rotary embedding; values are kept with zeros up to the size of keys.

    Args:
        layer: index of the layer in the model.
        rope: name of the layer's rotary table.
        value_dim: channels of a head's value, at most the head size.
        value_scale: factor on values.
        has_sinks: whether the softmax has a learned logit for each head.
    """

    _zeros: torch.Tensor

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        build: Build,
        *,
        rope: str,
        value_dim: int,
        value_scale: float,
        qkv_bias: bool,
        has_sinks: bool,
    ) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        own_heads, own_kv_heads = build.tensor_parallel.share_of_heads(heads, kv_heads)
        sections = {
            "q_proj": Section(heads * head_dim, head_dim),
            "k_proj": Section(kv_heads * head_dim, head_dim),
            "v_proj": Section(kv_heads * value_dim, value_dim),
        }
        self.qkv_proj = build.linear("qkv_proj", config.hidden_size, sections, bias=qkv_bias, split="column")
        self.o_proj = build.linear("o_proj", heads * value_dim, config.hidden_size, split="row")
        window = config.sliding_window if config.layer_types[layer] == "sliding_attention" else None
        spec = AttentionSpec(own_heads, own_kv_heads, head_dim, head_dim**-0.5)
        self.attention = Attention(build.name, spec, build, window)
        self.terms = AttentionTerms(heads, build, has_sinks=True) if has_sinks else None
        self.rope = rope
        self.value_dim = value_dim
        self.value_scale = value_scale
        self.register_buffer("_zeros", torch.zeros(1, 1, head_dim - value_dim), persistent=False)
        self._sizes = (own_heads + own_kv_heads) * head_dim, own_kv_heads * value_dim

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        head_dim = self.attention.spec.head_dim
        rotated, values = self.qkv_proj(x).split(self._sizes, -1)
        own = values.unflatten(1, (-1, self.value_dim))
        wide = torch.cat((own, self._zeros.expand(*own.shape[:2], -1)), -1).flatten(1)
        terms = NO_TERMS if self.terms is None else self.terms.values()
        attended = self.attention(torch.cat((rotated, wide), -1), ropes[self.rope], None, step, terms)
        narrow = attended.unflatten(1, (-1, head_dim))[..., : self.value_dim].flatten(1)
        return self.o_proj(narrow * self.value_scale)
