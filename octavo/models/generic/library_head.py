"""What a model of the transformers library does behind its layers: its head, and scales and caps around it."""

from typing import Any, Protocol

import torch
from torch import nn

from octavo.layers.embedding import Head


class HasHead(Protocol):
    """A model with its head under ``lm_head``, ``[N, hidden] → [N, vocab]``."""

    lm_head: Head


class LibraryHead:
    """The library's model with a place for hidden states where its layers were.

    Args:
        whole: the library's model.
        base, head: its layers and its head, which leave it.
        owner: has the head that runs, under ``lm_head``.
    """

    def __init__(self, whole: Any, base: nn.Module, head: nn.Module, owner: HasHead) -> None:
        self._given = _Given(base)
        self._whole = whole
        for module in list(whole.modules()):
            for name, child in list(module.named_children()):
                if child is base:
                    setattr(module, name, self._given)
                elif child is head:
                    setattr(module, name, _HeadOf(owner))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``."""
        self._given.hidden = hidden[None]
        token_ids = torch.empty(1, len(hidden), dtype=torch.int64, device=hidden.device)  # of which nothing is read
        logits: torch.Tensor = self._whole(input_ids=token_ids, use_cache=False).logits[0]
        self._given.hidden = None
        return logits


class _Given(nn.Module):
    """Layers whose results are there already, and whatever part of them is called."""

    hidden: torch.Tensor | None = None

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        vars(self).update({name: self for name, _ in base.named_children()})

    def forward(self, *_: Any, **__: Any) -> "_Outputs":
        assert self.hidden is not None, "the tail is called"
        return _Outputs(self.hidden)


class _Outputs(tuple[torch.Tensor]):
    """Hidden states as the first entry and under their name; whatever else layers may return is None."""

    def __new__(cls, hidden: torch.Tensor) -> "_Outputs":
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _HeadOf(nn.Module):
    """The head of another model, ``[1, N, hidden] → [1, N, vocab]``."""

    _owner: HasHead

    def __init__(self, owner: HasHead) -> None:
        super().__init__()
        object.__setattr__(self, "_owner", owner)  # not a submodule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._owner.lm_head(x.flatten(0, -2)).view(*x.shape[:-1], -1)
