"""The attention layer, and the per-step inputs that a model passes to it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo.kernels import AttentionBackend, AttentionSpec, HeadNorms, RopeTables


@dataclass(slots=True)
class StepAttention:
    """The caches and the step's attention plans, passed through a model's forward.

    Attributes:
        backend: implementation of attention.
        kv_caches: per layer, ``[2, blocks, Hkv, block_size, D]``.
        plans: per layer, the result of :meth:`AttentionBackend.plan` for its cache group.
    """

    backend: AttentionBackend
    kv_caches: list[torch.Tensor]
    plans: list[Any]


class Attention(nn.Module):
    """Causal attention of one layer over its paged cache.

    Args:
        layer: index of the layer in the model.
    """

    def __init__(self, layer: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.layer = layer
        self.spec = spec

    def forward(
        self, qkv: torch.Tensor, rope: RopeTables, norms: HeadNorms | None, step: StepAttention
    ) -> torch.Tensor:
        """Norm and rotate queries and keys, store keys and values, attend.

        Args:
            qkv: ``[T, (H + 2·Hkv)·D]``, may be overwritten.

        Returns:
            ``[T, H·D]``.
        """
        cache, plan = step.kv_caches[self.layer], step.plans[self.layer]
        return step.backend.run(qkv, rope, norms, cache, plan, self.spec)
