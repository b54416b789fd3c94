"""Causal attention of a layer over its paged keys and values."""

import torch

from octavo.kernels import NO_TERMS, AttentionSpec, HeadNorms, HeadTerms, RopeTables
from octavo.layers.build import Build
from octavo.layers.cache_scales import LayerScales, stored_type
from octavo.layers.context import CachedLayer, StepContext
from octavo.records import CacheSpec, Full, SlidingWindow


class Attention(CachedLayer):
    """Causal attention.

    Args:
        name: of its cache; its beginning is that of the layer's tensors in checkpoints.
        window: number of tokens that a query attends to, itself included; None for all.
    """

    def __init__(self, name: str, spec: AttentionSpec, build: Build, window: int | None = None) -> None:
        stored = build.cache.of_layer(name, window)
        shape = (spec.num_kv_heads, spec.head_dim, stored_type(stored))
        kept: CacheSpec = Full(*shape, has_scales=stored.has_own_scales)
        if window is not None:
            kept = SlidingWindow(*shape, window, has_scales=stored.has_own_scales)
        super().__init__({name: kept})
        self.name = name
        self.spec = spec
        self.scales = LayerScales(name, stored, ("k_scale", "v_scale"))

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
        cache, scales = self.scales.beside(step.caches[self.name])
        return step.attention.run(qkv, rope, norms, cache, step.inputs[self.name], self.spec, terms, scales)
