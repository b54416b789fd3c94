"""A choice of experts that the kernels make which read it."""

from collections.abc import Callable, Iterator

import torch

from octavo.records.experts import Routing

Chosen = tuple[torch.Tensor, torch.Tensor]
"""Each token's experts and their weights, ``[T, K]`` int64 and float32."""


class DeferredChoice:
    """A single token's experts by its router's logits, for experts whose first kernel chooses by itself.

    For all others it unpacks into :data:`Chosen`, which a launch of its own computes, once.

    Attributes:
        logits: ``[P, 1, E]`` float32, parts of the logits, to be added in their order.
        bias: ``[E]`` float32, of the logits; None for none.
        correction: see :func:`octavo.kernels.routing.choose_experts`.
        places: ``[K]`` int32, all negative, where the kernel that chooses leaves the experts for the next one.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        bias: torch.Tensor | None,
        correction: torch.Tensor | None,
        routing: Routing,
        places: torch.Tensor,
        choose: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Routing], Chosen],
    ) -> None:
        self.logits = logits
        self.bias = bias
        self.correction = correction
        self.routing = routing
        self.places = places
        self._choose = choose
        self._chosen: Chosen | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._chosen is None:
            self._chosen = self._choose(self.logits, self.bias, self.correction, self.routing)
        return iter(self._chosen)
