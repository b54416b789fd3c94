"""Filling a model's tensors from named checkpoint tensors, and naming all that does not fit."""

import torch

from octavo.errors import WeightsError

_SHOWN = 5
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")


class SlotFiller:
    """Copies tensors into a model's slots and keeps account of them.

    Args:
        slots: checkpoint name → destination.
        is_tied: whether the head shares the embedding, so that a head in the checkpoint is of no use.
    """

    def __init__(self, slots: dict[str, torch.Tensor], *, is_tied: bool) -> None:
        self._slots = slots
        self._ignored = {"lm_head.weight"} if is_tied else set()
        self._filled: set[str] = set()
        self._unexpected: list[str] = []
        self._misshaped: list[str] = []
        self.num_bytes = 0

    def slot(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Where a tensor goes; None (and noted) if it goes nowhere or has the wrong shape."""
        destination = self._slots.get(name)
        if destination is None:
            if name not in self._ignored and not name.endswith(_IGNORED_SUFFIXES):
                self._unexpected.append(name)
            return None
        if tuple(destination.shape) != shape:
            self._misshaped.append(f"{name} is {list(shape)}, the configuration wants {list(destination.shape)}")
            self._filled.add(name)
            return None
        return destination

    def fill(self, name: str, destination: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy a tensor, converting type and device."""
        destination.copy_(tensor)
        self.note(name, destination)

    def note(self, name: str, destination: torch.Tensor) -> None:
        """Note that a slot was filled by somebody else."""
        self._filled.add(name)
        self.num_bytes += destination.numel() * destination.element_size()

    def finish(self, where: str) -> None:
        """Check that everything was filled and nothing was left over.

        Raises:
            WeightsError: naming what is missing, unexpected and mis-shaped.
        """
        missing = [name for name in self._slots if name not in self._filled]
        complaints = [
            _complaint("missing", missing),
            _complaint("unexpected", self._unexpected),
            _complaint("of the wrong shape", self._misshaped),
        ]
        problems = [complaint for complaint in complaints if complaint]
        if problems:
            raise WeightsError(f"The weights in {where} do not fit the model: {'; '.join(problems)}.")


def _complaint(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"
