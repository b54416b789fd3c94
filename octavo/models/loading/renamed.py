"""A checkpoint whose tensors have other names than the usual ones of its family."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from octavo.models.loading.checkpoint import Checkpoint
from octavo.quantization.slot import Slots

Value = TypeVar("Value")


class RenamedCheckpoint:
    """See :class:`Checkpoint`.

    Args:
        checkpoint: under its own names.
        replacements: parts of names → what stands in their place here.
    """

    path: Path

    def __init__(self, checkpoint: Checkpoint, replacements: Mapping[str, str]) -> None:
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._shapes = checkpoint.shapes()
        self._names = {_replaced(name, replacements): name for name in self._shapes}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :meth:`Checkpoint.shapes`."""
        return self._by_new_name(self._shapes)

    def dtypes(self) -> Mapping[str, torch.dtype]:
        """See :meth:`Checkpoint.dtypes`."""
        return self._by_new_name(self._checkpoint.dtypes())

    def raw_types(self) -> Mapping[str, str]:
        """See :meth:`Checkpoint.raw_types`."""
        return self._by_new_name(self._checkpoint.raw_types())

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`."""
        return self._checkpoint.copy_into({self._names[name]: places for name, places in slots.items()})

    def _by_new_name(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {new: values[name] for new, name in self._names.items() if name in values}


def _replaced(name: str, replacements: Mapping[str, str]) -> str:
    for part, other in replacements.items():
        name = name.replace(part, other)
    return name
