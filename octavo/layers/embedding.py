"""The token embedding and the language-model head."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from octavo import kernels
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.quantization.slot import WeightSlot


class Embedding(nn.Module):
    """Maps token ids to vectors.

    Args:
        scale: factor on every vector, rounded to the compute type first (as Gemma was trained).
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, scale: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self.scale = None if scale is None else float(torch.tensor(scale, device="cpu").item())
        self._replaced: tuple[torch.Tensor, torch.Tensor] | None = None

    @contextmanager
    def replacing(self, places: torch.Tensor, vectors: torch.Tensor) -> Iterator[None]:
        """A context that replaces the output at ``places``, ``[n]``, by ``vectors``, ``[n, hidden]``, unscaled."""
        self._replaced = places, vectors
        try:
            yield
        finally:
            self._replaced = None

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[T]`` int → ``[T, hidden]``."""
        vectors = kernels.take_rows(self.weight, token_ids)
        vectors = vectors if self.scale is None else vectors * self.scale
        return vectors if self._replaced is None else vectors.index_copy(0, *self._replaced)


class Head(Linear):
    """Logits over the vocabulary, ``[N, hidden] → [N, vocab]``.

    Args:
        tied: the embedding whose weight is shared; the checkpoint then has no separate head.
        softcap: logits become ``c · tanh(logits / c)``.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        build: Build,
        *,
        tied: Embedding | None = None,
        softcap: float | None = None,
    ) -> None:
        name = "lm_head"
        quantization = build.quantization
        scheme = quantization.head_scheme(f"{build.prefix}{name}") if tied is None else quantization.plain
        super().__init__(hidden_size, {name: vocab_size}, scheme)
        self.softcap = softcap
        self.keep_weight = tied is not None
        if tied is not None:
            # Register the parameter in the embedding only: a second name would look like a second checkpoint entry.
            del self.weight
            object.__setattr__(self, "weight", tied.weight)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """The head's slots; a tied embedding has its own."""
        return iter(()) if self.keep_weight else super().weight_slots(path)

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, into ``out`` if it is given."""
        logits = super().forward(x, out)
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)
