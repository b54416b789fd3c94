"""The attention layer, and what a step brings for it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo import kernels
from octavo.kernels import AttentionBackend, AttentionSpec


@dataclass(slots=True)
class StepAttention:
    """The caches and the step's plans, handed down through a model's forward.

    Attributes:
        backend: how attention is computed.
        kv_caches: per layer, ``[2, blocks, block_size, Hkv, D]``.
        plans: per layer, what :meth:`AttentionBackend.plan` made for its cache group.
        slot_mappings: per layer, ``[T]`` int64, where its cache group stores the new tokens.
    """

    backend: AttentionBackend
    kv_caches: list[torch.Tensor]
    plans: list[Any]
    slot_mappings: list[torch.Tensor]


class Attention(nn.Module):
    """Causal attention of one layer over its paged cache.

    Args:
        layer: index of the layer in the model.
    """

    def __init__(self, layer: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.layer = layer
        self.spec = spec

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """Store the new keys and values, then attend.

        Args:
            q: ``[T, H, D]``.
            k, v: ``[T, Hkv, D]``.

        Returns:
            ``[T, H·D]``.
        """
        cache = step.kv_caches[self.layer]
        kernels.store_kv(k, v, cache, step.slot_mappings[self.layer])
        output = step.backend.attend(q, cache, step.plans[self.layer], self.spec)
        return output.flatten(1)
