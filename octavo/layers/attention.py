"""Causal attention of a layer over its paged keys and values."""

import torch

from octavo.kernels import NO_TERMS, AttentionSpec, HeadNorms, HeadTerms, RopeTables
from octavo.layers.context import CachedLayer, StepContext, compute_type
from octavo.records import CacheSpec, Full, SlidingWindow


class Attention(CachedLayer):
    """Causal attention.

    Args:
        name: of its cache.
        window: number of tokens that a query attends to, itself included; None for all.
    """

    def __init__(self, name: str, spec: AttentionSpec, window: int | None = None) -> None:
        shape = (spec.num_kv_heads, spec.head_dim, compute_type())
        kept: CacheSpec = Full(*shape) if window is None else SlidingWindow(*shape, window)
        super().__init__({name: kept})
        self.name = name
        self.spec = spec

    def forward(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        step: StepContext,
        terms: HeadTerms = NO_TERMS,
    ) -> torch.Tensor:
        """Norm and rotate queries and keys, store keys and values, attend.

        Args:
            qkv: ``[T, (H + 2·Hkv)·D]``, may be overwritten.

        Returns:
            ``[T, H·D]``.
        """
        (cache,) = step.caches[self.name]
        return step.attention.run(qkv, rope, norms, cache, step.inputs[self.name], self.spec, terms)
