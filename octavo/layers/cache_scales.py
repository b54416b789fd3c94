"""The scales of a layer's quantised keys and values: from its checkpoint, or beside them in the cache."""

from collections.abc import Iterator

import torch
from torch import nn

from octavo.kernels import CacheScales
from octavo.layers.context import compute_type
from octavo.quantization.cache_format import CacheFormat
from octavo.quantization.slot import WeightSlot

_SHAPES: tuple[tuple[int, ...], ...] = ((1,), ())
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
    """

    given: nn.Parameter | None

    def __init__(self, name: str, stored: CacheFormat, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self._name = name
        self._kinds = kinds
        given = None
        if stored.has_given_scales:
            given = nn.Parameter(torch.ones(len(kinds), dtype=torch.float32), requires_grad=False)
        self.register_parameter("given", given)

    def beside(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, CacheScales | None]:
        """A layer's cache, and its scales if it is quantised.

        Args:
            tensors: of the layer in the cache.
        """
        cache, *own = tensors
        if self.given is not None:
            return cache, CacheScales.given(self.given, cache)
        return cache, CacheScales(own[0], are_given=False) if own else None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        for index, kind in enumerate(self._kinds if self.given is not None else ()):
            assert self.given is not None
            view = self.given.data[index : index + 1]
            # In this order of preference: by kind, of the layers ``k_proj`` and ``v_proj``, or one for both kinds.
            others = [place + kind for place in _PLACES[1:]]
            others += [f"{kind[0]}_proj.{kind}", f"{kind[0]}_proj.output_scale"]
            others += [f"{place}kv_scale" for place in _PLACES[:2]]
            yield f"{self._name}.{kind}", WeightSlot(view, _SHAPES, alternatives=tuple(others), is_optional=True)
