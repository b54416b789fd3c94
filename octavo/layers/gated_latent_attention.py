"""Latent attention with sinks and a gate (Hunyuan 4)."""

from typing import Any

import torch

from octavo.hub.model_config import ModelConfig
from octavo.kernels import DeferredNorm
from octavo.kernels.routing import sigmoid
from octavo.layers.build import Build
from octavo.layers.head_terms import AttentionTerms
from octavo.layers.latent_attention import LatentAttention, LatentSizes


class GatedLatentAttention(LatentAttention):
    """A gate by head and channel, a sigmoid of the layer's input, weights values; see :class:`LatentAttention`."""

    def __init__(self, config: ModelConfig, sizes: LatentSizes, build: Build, **options: Any) -> None:
        super().__init__(config, sizes, build, **options)
        self.terms = AttentionTerms(config.num_heads, build, has_sinks=True)
        self.linear_gate = build.linear(
            "linear_gate",
            config.hidden_size,
            config.num_heads * sizes.value_dim,
            split="column",
            head_size=sizes.value_dim,
        )

    def sinks(self) -> torch.Tensor | None:
        """See :meth:`LatentAttention.sinks`."""
        return self.terms.sinks

    def weighted(self, values: torch.Tensor, x: torch.Tensor | DeferredNorm) -> torch.Tensor:
        """See :meth:`LatentAttention.weighted`."""
        return values * sigmoid(self.linear_gate(x))
