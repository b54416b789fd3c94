"""A matrix that is kept as values, however a checkpoint stores it: a router, or another gate."""

from collections.abc import Callable, Iterator

import torch

from octavo.quantization.grouped_weight import GroupedWeight, Layout
from octavo.quantization.pending import PendingTensors
from octavo.quantization.slot import WeightSlot


class StoredMatrix:
    """Which tensors of a checkpoint a matrix is made of.

    Configurations seldom name such layers, which most writers leave as they are, so the checkpoint itself decides.

    Args:
        layout: how the checkpoint stores the matrix if it is quantised; None if it is not.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout
        self._is_quantised = False

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :class:`octavo.layers.weights.FitsForms`."""
        self._is_quantised = self._layout is not None and self._layout.is_found(path, has)

    def slots(
        self, path: str, view: torch.Tensor, shapes: tuple[tuple[int, ...], ...] = ()
    ) -> Iterator[tuple[str, WeightSlot]]:
        """Names in the checkpoint and slots.

        Args:
            path: the layer's name.
            view: where the values go, ``[out, in]``.
            shapes: that a tensor of values may have; empty for the view's.
        """
        if self._layout is None or not self._is_quantised:
            yield f"{path}.weight", WeightSlot(view, shapes)
            return

        def store(weight: GroupedWeight) -> None:
            view.copy_(weight.values())

        pending = PendingTensors(self._layout, (view.shape[0], view.shape[1]), store)
        yield from ((f"{path}.{leaf}", slot) for leaf, slot in pending.slots(view))
