"""Latent attention by the compiled kernels, which read a step's rows where the step's inputs are."""

import torch

from octavo.kernels.attention import AttentionInputs, RopeTables
from octavo.kernels.basic import rotate_heads
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.cpu.native_attention import address_of_heads, attention_rows, cache_type
from octavo.kernels.head_linear import HeadLinear, head_linear
from octavo.kernels.latent_attention import LatentSpec, finish_latent, latent_attention, store_latent
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled

_MAX_GROUP = 64
"""Maximum number of heads that are computed together."""
_NO_NORM = (0, 0, 0.0, 0, 0, 0, False)
"""Of vectors that are stored as they are: no norm, its type, its epsilon; no tables, their size, the order of pairs."""
_PROFILED = profiled("linear")


class NativeHeadLinear(HeadLinear):
    """A weight in panels, one head's after another's; a row's result does not depend on the other rows.

    Args:
        weight: ``[H, out, in]``.
    """

    is_copy = True

    def __init__(self, native: NativeKernels, weight: torch.Tensor) -> None:
        self._native = native
        self._type = TYPE_NUMBERS[weight.dtype]
        self._shape = weight.shape
        num_bytes = native.packed_bytes(self._type, *weight.shape[1:])
        self._packed = torch.empty(len(weight), num_bytes, dtype=torch.uint8)
        self.update(weight)

    def update(self, weight: torch.Tensor) -> None:
        for rows, packed in zip(weight.contiguous(), self._packed, strict=True):
            self._native.pack(rows.data_ptr(), packed.data_ptr(), len(rows), rows.shape[1], self._type)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        heads, outputs, inputs = self._shape
        assert (
            x.stride(2) == out.stride(2) == 1 and x.shape[1:] == (heads, inputs) and out.shape[1:] == (heads, outputs)
        )
        x_bytes, out_bytes = x.element_size(), out.element_size()
        with _PROFILED:
            self._native.head_linear(
                self._packed.data_ptr(),
                x.data_ptr(),
                out.data_ptr(),
                self._packed.stride(0),
                x.stride(0) * x_bytes,
                x.stride(1) * x_bytes,
                out.stride(0),
                out.stride(1) * out_bytes,
                len(x),
                outputs,
                inputs,
                heads,
                self._type,
                TYPE_NUMBERS[x.dtype],
                TYPE_NUMBERS[out.dtype],
            )
        return out


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for these operations on CPUs; other types than theirs run as the reference."""

    profiled_attention, profiled_rotation = profiled("latent_attention"), profiled("rotation")

    @head_linear.register("cpu")
    def packed(weight: torch.Tensor) -> HeadLinear:
        return NativeHeadLinear(native, weight) if weight.dtype in TYPE_NUMBERS else head_linear.reference(weight)

    @rotate_heads.register("cpu")
    def rotate(
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        is_interleaved: bool = False,
        is_last: bool = False,
    ) -> torch.Tensor:
        if not (x.dtype in TYPE_NUMBERS and x.dtype == cos.dtype == sin.dtype and x.stride(2) == 1):
            return rotate_heads.reference(x, cos, sin, out, is_interleaved=is_interleaved, is_last=is_last)
        rotated = x.new_empty(x.shape) if out is None else out
        assert rotated.stride(2) == 1 and rotated.dtype == x.dtype
        with profiled_rotation:
            native.rotate_heads(
                x.data_ptr(),
                rotated.data_ptr(),
                *_rotation(cos, sin, is_interleaved=is_interleaved),
                is_last,
                *x.shape,
                *x.stride()[:2],
                *rotated.stride()[:2],
                TYPE_NUMBERS[x.dtype],
            )
        return rotated

    def put(
        latent: torch.Tensor,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: CacheScales | None,
        finish: tuple[float, ...],
    ) -> None:
        """Store vectors as they are, or finished: with a norm and its epsilon, and a rotation."""
        _, block_size, size = cache.shape
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
            *finish,
        )

    def stores_here(latent: torch.Tensor, cache: torch.Tensor, scales: CacheScales | None) -> bool:
        is_type = latent.dtype in TYPE_NUMBERS and (scales is not None or latent.dtype == cache.dtype)
        return is_type and latent.stride(1) == 1

    @finish_latent.register("cpu")
    def finish(
        latent: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        rope: RopeTables,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: CacheScales | None = None,
        *,
        is_interleaved: bool,
    ) -> None:
        is_plain = norm.dtype in TYPE_NUMBERS and rope[0].dtype == rope[1].dtype == latent.dtype
        if not (is_plain and stores_here(latent, cache, scales)):
            finish_latent.reference(latent, norm, eps, rope, cache, slot_mapping, scales, is_interleaved=is_interleaved)
            return
        rotation = _rotation(*rope, is_interleaved=is_interleaved)
        with profiled_rotation:
            put(latent, cache, slot_mapping, scales, (norm.data_ptr(), TYPE_NUMBERS[norm.dtype], eps, *rotation))

    @store_latent.register("cpu")
    def store(
        latent: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scales: CacheScales | None = None
    ) -> None:
        if stores_here(latent, cache, scales):
            put(latent, cache, slot_mapping, scales, _NO_NORM)
        else:
            store_latent.reference(latent, cache, slot_mapping, scales)

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
        if not is_plain or (chosen is not None and chosen.dtype != torch.int32):
            return latent_attention.reference(q, cache, inputs, spec, scales, sinks, chosen)
        heads, size = spec.num_heads, spec.rank + spec.rope_dim
        assert q.is_contiguous() and cache.stride()[1:] == (size, 1) and inputs.slots.dtype == torch.int32
        assert chosen is None or (len(chosen) >= len(q) and chosen.is_contiguous())
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
                address_of_heads(sinks),
                0 if chosen is None else chosen.data_ptr(),
                0 if chosen is None else chosen.shape[1],
            )
        return output


def _rotation(cos: torch.Tensor, sin: torch.Tensor, *, is_interleaved: bool) -> tuple[int, ...]:
    """What the compiled kernels need to know of rotary tables."""
    assert cos.is_contiguous() and sin.is_contiguous()
    return cos.data_ptr(), sin.data_ptr(), cos.shape[-1], is_interleaved
