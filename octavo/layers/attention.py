"""Causal attention of a layer over its paged keys and values."""

import torch

from octavo.kernels import NO_TERMS, AttentionSpec, HeadNorms, HeadTerms, RopeTables
from octavo.layers.build import Build
from octavo.layers.cache_scales import LayerScales, stored_type
from octavo.layers.context import CachedLayer, StepContext
from octavo.records import CacheSpec, ChunkedLocal, Full, Shared, SlidingWindow


class Attention(CachedLayer):
    """Causal attention.

    Args:
        name: of its cache; its beginning is that of the layer's tensors in checkpoints.
        window: number of tokens that a query attends to, itself included; None for all.
        chunk: queries attend within chunks of so many tokens; not together with a window.
        of: name of the earlier layer's cache that it reads in place of one of its own; None for its own.

    Attributes:
        name: of the cache that it reads.
    """

    def __init__(
        self,
        name: str,
        spec: AttentionSpec,
        build: Build,
        window: int | None = None,
        *,
        chunk: int | None = None,
        of: str | None = None,
    ) -> None:
        source = of or name
        stored = build.cache.of_layer(source, window)
        shape = (spec.num_kv_heads, spec.head_dim, stored_type(stored))
        kept: CacheSpec = Full(*shape, has_scales=stored.has_own_scales)
        if window is not None:
            kept = SlidingWindow(*shape, window, has_scales=stored.has_own_scales)
        elif chunk is not None:
            kept = ChunkedLocal(*shape, chunk, has_scales=stored.has_own_scales)
        super().__init__({name: kept if of is None else Shared(of)})
        self.name = source
        self.spec = spec
        self.window = window
        self.scales = LayerScales(source, stored, ("k_scale", "v_scale"), spec.num_kv_heads, build.tensor_parallel)

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
