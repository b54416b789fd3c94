"""The scales of a layer's quantised keys and values: from its checkpoint, or beside them in the cache."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from octavo.kernels import CacheScales
from octavo.layers.context import compute_type
from octavo.parallel import ONE_DEVICE, TensorParallel
from octavo.quantization.cache_format import CacheFormat
from octavo.quantization.slot import WeightSlot

_SHAPES: tuple[tuple[int, ...], ...] = ((1,), ())
_HEAD_STRIDE = 16
"""Numbers from a head's scale to the next one's: kernels are compiled for addresses of heads that are aligned."""
_PLACES = ("", "attn.", "mla_attn.", "qkv_proj.")
"""Modules in that of the attention layer under which checkpoints have the scales."""


def stored_type(stored: CacheFormat) -> str:
    """The type of a layer's cache by torch's name."""
    return stored.dtype or compute_type()


class LayerScales(nn.Module):
    """Finds the scales of a layer's cache, which are parameters if checkpoints have them.

    Args:
        name: beginning of the names of the layer's tensors.
        kinds: names of its scales.
        num_heads: key/value heads of the cache on this device.
        parallel: how checkpoints' heads are divided between devices.

    Attributes:
        given: ``[kinds]``, or ``[kinds, heads, 16]`` of which the first numbers count; None if checkpoints have none.
    """

    given: nn.Parameter | None

    def __init__(
        self,
        name: str,
        stored: CacheFormat,
        kinds: tuple[str, ...],
        num_heads: int = 1,
        parallel: TensorParallel = ONE_DEVICE,
    ) -> None:
        super().__init__()
        self._name = name
        self._kinds = kinds
        self._num_heads, self._parallel = num_heads, parallel
        given = None
        if stored.has_given_scales:
            size = (len(kinds), num_heads, _HEAD_STRIDE) if stored.has_head_scales else (len(kinds),)
            given = nn.Parameter(torch.ones(size, dtype=torch.float32), requires_grad=False)
        self.register_parameter("given", given)

    def beside(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, CacheScales | None]:
        """A layer's cache, and its scales if it is quantised.

        Args:
            tensors: of the layer in the cache.
        """
        cache, *own = tensors
        if self.given is not None:
            given = self.given if self.given.dim() == 1 else self.given[..., 0]
            return cache, CacheScales.given(given, cache)
        return cache, CacheScales(own[0], are_given=False) if own else None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        for index, kind in enumerate(self._kinds if self.given is not None else ()):
            assert self.given is not None
            # In this order of preference: by kind, of the layers ``k_proj`` and ``v_proj``, or one for both kinds.
            others = [place + kind for place in _PLACES[1:]]
            others += [f"{kind[0]}_proj.{kind}", f"{kind[0]}_proj.output_scale"]
            others += [f"{place}kv_scale" for place in _PLACES[:2]]
            yield f"{self._name}.{kind}", replace(self._slot(index), alternatives=tuple(others), is_optional=True)

    def _slot(self, index: int) -> WeightSlot:
        """The slot of a kind's scales."""
        assert self.given is not None
        if self.given.dim() == 1:
            return WeightSlot(self.given.data[index : index + 1], _SHAPES)
        counts = {self._num_heads * self._parallel.size}
        if self._num_heads == 1:  # fewer heads than devices may be repeated
            counts |= {count for count in range(1, self._parallel.size) if self._parallel.size % count == 0}
        shapes = tuple(shape for count in sorted(counts, reverse=True) for shape in ((count, 1, 1), (count,)))
        return WeightSlot(self.given.data[index, :, 0], shapes, transform=self._own_heads)

    def _own_heads(self, scales: torch.Tensor) -> torch.Tensor:
        """This device's of a checkpoint's scales of heads."""
        own = self._parallel.share(scales.numel(), "key/value heads", may_repeat=True)
        return scales.flatten()[own.start : own.stop]
