"""Tensor parallelism: every device computes a part of each layer (arXiv:1909.08053).

A column-parallel linear layer has some of the outputs on each device; a row-parallel one, which follows it, some of the
inputs, and its results are added up. A model is told by :class:`TensorParallel` which part is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from octavo.errors import ConfigError


class Collectives(Protocol):
    """Operations that all ranks of a group run in the same order, queued on the current stream."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in place: any shape, the same on all ranks, contiguous."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, in their order: ``[...] → [size, ...]``."""


class Section(NamedTuple):
    """Consecutive rows of a tensor.

    Attributes:
        size: number of rows.
        unit: rows that stay together; fewer units than ranks are repeated.
        interleaved: of each unit's rows, how many hold rotary pairs ``(2i, 2i + 1)``, the first ones; they are stored
            as pairs ``(i, i + interleaved / 2)``.
    """

    size: int
    unit: int = 1
    interleaved: int = 0


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """The part of a model that a device has.

    Attributes:
        rank, size: the device's number, and how many devices there are.
        collectives: joins results; None for models that are never run, as in planning.
    """

    rank: int = 0
    size: int = 1
    collectives: Collectives | None = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`Collectives.all_reduce`."""
        assert self.collectives is not None, "the model is run"
        return self.collectives.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`Collectives.all_gather`."""
        assert self.collectives is not None, "the model is run"
        return self.collectives.all_gather(x)

    def share(self, count: int, what: str, *, may_repeat: bool = False) -> range:
        """This rank's part of ``count`` things that are dealt out evenly.

        Args:
            what: the things, for the error.
            may_repeat: fewer things than ranks are repeated, so that each rank has one.

        Raises:
            ConfigError: they cannot be dealt out evenly.
        """
        if count % self.size == 0:
            num_own = count // self.size
            return range(self.rank * num_own, (self.rank + 1) * num_own)
        if may_repeat and self.size % count == 0:
            own = self.rank * count // self.size
            return range(own, own + 1)
        raise ConfigError(
            f"tensor_parallel_size is {self.size}, but the model's {count} {what} cannot be dealt out evenly to "
            "so many devices; choose another number of devices."
        )

    def share_of_sections(self, sections: Sequence[Section], what: str) -> list[tuple[range, range]]:
        """Of rows in sections, each dealt out by itself: where this rank stores its own, and where they are in all.

        Args:
            what: the units, for the error.

        Raises:
            ConfigError: see :meth:`share`.
        """
        found, start, place = [], 0, 0
        for section in sections:
            units = self.share(section.size // section.unit, what, may_repeat=section.unit > 1)
            source = range(start + units.start * section.unit, start + units.stop * section.unit)
            found.append((range(place, place + len(source)), source))
            start, place = start + section.size, place + len(source)
        return found

    def share_of_heads(self, num_heads: int, num_kv_heads: int) -> tuple[int, int]:
        """How many of a model's attention heads, and of their key/value heads, each rank has.

        Raises:
            ConfigError: they cannot be dealt out evenly.
        """
        kv_heads = self.share(num_kv_heads, "key/value heads", may_repeat=True)
        return len(self.share(num_heads, "attention heads")), len(kv_heads)

    def share_of_vocabulary(self, vocab_size: int) -> tuple[range, int]:
        """This rank's tokens, and how many rows each rank keeps for its own; the last ranks may have fewer tokens."""
        num_rows = -(-vocab_size // self.size)
        return range(min(self.rank * num_rows, vocab_size), min((self.rank + 1) * num_rows, vocab_size)), num_rows


ONE_DEVICE = TensorParallel()
