"""Latent attention by the compiled kernels, which read a step's rows where the step's inputs are."""

import torch

from octavo.kernels.attention import AttentionInputs
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.cpu.native_attention import attention_rows, cache_type
from octavo.kernels.latent_attention import LatentSpec, latent_attention, store_latent
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled

_MAX_GROUP = 64
"""Maximum number of heads that are computed together."""


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for these operations on CPUs; other types than theirs run as the reference."""

    profiled_attention = profiled("latent_attention")

    @store_latent.register("cpu")
    def store(
        latent: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scales: CacheScales | None = None
    ) -> None:
        _, block_size, size = cache.shape
        if (
            latent.dtype not in TYPE_NUMBERS
            or (scales is None and latent.dtype != cache.dtype)
            or latent.stride(1) != 1
        ):
            store_latent.reference(latent, cache, slot_mapping, scales)
            return
        value_bytes = cache.element_size()
        native.store_latent(
            latent.data_ptr(),
            cache.data_ptr(),
            slot_mapping.data_ptr(),
            len(slot_mapping),
            size * value_bytes,
            latent.stride(0) * latent.element_size(),
            cache.stride(0) * value_bytes,
            block_size,
            TYPE_NUMBERS[latent.dtype],
            *cache_type(cache, scales, 0),
        )

    @latent_attention.register("cpu")
    def attend(
        q: torch.Tensor,
        cache: torch.Tensor,
        inputs: AttentionInputs,
        spec: LatentSpec,
        scales: CacheScales | None = None,
        sinks: torch.Tensor | None = None,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        is_plain = q.dtype in TYPE_NUMBERS and (scales is not None or cache.dtype == q.dtype)
        if not is_plain or sinks is not None or chosen is not None:
            return latent_attention.reference(q, cache, inputs, spec, scales, sinks, chosen)
        heads, size = spec.num_heads, spec.rank + spec.rope_dim
        assert q.is_contiguous() and cache.stride()[1:] == (size, 1) and inputs.slots.dtype == torch.int32
        output = q.new_empty(len(q), heads, spec.rank)
        with profiled_attention:
            native.latent_attention(
                native.new_plan(),
                *attention_rows(inputs),
                q.data_ptr(),
                cache.data_ptr(),
                output.data_ptr(),
                cache.stride(0),
                len(q),
                heads,
                max(count for count in range(1, min(heads, _MAX_GROUP) + 1) if heads % count == 0),
                spec.rank,
                size,
                spec.scale,
                TYPE_NUMBERS[q.dtype],
                *cache_type(cache, scales, 0),
            )
        return output
