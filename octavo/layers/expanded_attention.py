"""Latent attention with sinks and a gate, which caches each head's keys and values."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec, RopeTables
from octavo.kernels.routing import sigmoid
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.head_terms import AttentionTerms
from octavo.layers.latent_attention import LatentAttention, LatentSizes
from octavo.layers.rotary import MAIN_ROPE


class ExpandedAttention(LatentAttention):
    """Keys and values are expanded, as the kernels for latent vectors know no sinks; see :class:`LatentAttention`.

    A gate by head and channel, a sigmoid of the layer's input, weights what attention yields.
    """

    def __init__(
        self, config: ModelConfig, sizes: LatentSizes, build: Build, *, scale: float, bias: bool, **options: Any
    ) -> None:
        super().__init__(config, sizes, build, scale=scale, bias=bias, **options)
        heads = self.spec.num_heads
        size = max(sizes.plain_dim + sizes.rope_dim, sizes.value_dim)
        self.cache_specs = {}  # the module below has them
        self.attention = Attention(build.name, AttentionSpec(heads, heads, size, scale), build)
        self.scales = self.attention.scales
        self.terms = AttentionTerms(config.num_heads, build, has_sinks=True)
        self.linear_gate = build.linear(
            "linear_gate",
            config.hidden_size,
            config.num_heads * sizes.value_dim,
            split="column",
            head_size=sizes.value_dim,
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        heads, value_dim = self.spec.num_heads, self.sizes.value_dim
        plain, rotary = self.queries(x)
        compressed, key = self.latents(x)
        expanded = F.linear(compressed, self.kv_b_proj.weight).unflatten(1, (heads, -1))
        plain_key, values = expanded.split((self.sizes.plain_dim, value_dim), -1)
        keys = torch.cat((key[:, None].expand(-1, heads, -1), plain_key), -1)
        parts = torch.cat((rotary, plain), -1), keys, values  # the kernels rotate the first values of each head
        qkv = torch.cat([self._padded(part) for part in parts], -1)
        attended = self.attention(qkv, ropes[MAIN_ROPE], None, step, self.terms.values())
        own = attended.unflatten(1, (heads, -1))[..., :value_dim].flatten(1)
        return self.o_proj(own * sigmoid(self.linear_gate(x)))

    def _padded(self, part: torch.Tensor) -> torch.Tensor:
        """``[T, H, ≤ D] → [T, H · D]`` with zeros, which change neither scores nor values."""
        return F.pad(part, (0, self.attention.spec.head_dim - part.shape[-1])).flatten(1)
