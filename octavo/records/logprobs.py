"""Log-probabilities in results, with vLLM's names."""

from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, overload

import msgspec


class Logprob(msgspec.Struct, gc=False):
    """Log-probability of one token.

    Attributes:
        logprob: natural logarithm.
        rank: rank in the vocabulary, 1 is the most likely.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class FlatLogprobs(MutableSequence[dict[int, Logprob]]):
    """Log-probabilities of many positions in a few flat lists, which cause no garbage-collector load.

    It behaves like a list of dictionaries; positions can be appended, but not changed. The entries of position ``p``
    are those from ``start_indices[p]`` to ``end_indices[p]`` of the other lists; a position without entries is an
    empty dictionary.

    Attributes:
        start_indices, end_indices: one each per position.
        token_ids, logprobs, ranks, decoded_tokens: one each per entry.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    @classmethod
    def of(cls, positions: Iterable[dict[int, Logprob] | None]) -> "FlatLogprobs":
        """The same positions, flat."""
        flat = cls()
        flat.extend(positions)
        return flat

    def append(self, value: dict[int, Logprob] | None) -> None:
        """Add the next position."""
        entries = value or {}
        self.append_fast(
            list(entries),
            [entry.logprob for entry in entries.values()],
            [entry.rank for entry in entries.values()],
            [entry.decoded_token for entry in entries.values()],
        )

    def append_fast(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        ranks: Iterable[int | None],
        decoded_tokens: Iterable[str | None],
    ) -> None:
        """Add the next position from parallel lists; ``token_ids`` gives the number of entries."""
        self.start_indices.append(len(self.token_ids))
        for token_id, logprob, rank, text in zip(token_ids, logprobs, ranks, decoded_tokens, strict=False):
            self.token_ids.append(token_id)
            self.logprobs.append(logprob)
            self.ranks.append(rank)
            self.decoded_tokens.append(text)
        self.end_indices.append(len(self.token_ids))

    def extend(self, values: Iterable[dict[int, Logprob] | None]) -> None:
        """Add further positions."""
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        return len(self.start_indices)

    def __iter__(self) -> Iterator[dict[int, Logprob]]:
        return (self[position] for position in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob]: ...

    @overload
    def __getitem__(self, index: slice) -> "FlatLogprobs": ...

    def __getitem__(self, index: int | slice) -> "dict[int, Logprob] | FlatLogprobs":
        if isinstance(index, slice):
            return FlatLogprobs.of(self[position] for position in range(*index.indices(len(self))))
        entries = range(self.start_indices[index], self.end_indices[index])
        return {
            self.token_ids[entry]: Logprob(self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry])
            for entry in entries
        }

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError("Positions of FlatLogprobs cannot be replaced.")

    def __delitem__(self, index: object) -> NoReturn:
        raise TypeError("Positions of FlatLogprobs cannot be removed.")

    def insert(self, index: int, value: object) -> NoReturn:
        """Not supported: positions are only appended."""
        raise TypeError("Positions of FlatLogprobs cannot be inserted.")


PromptLogprobs = Sequence[dict[int, Logprob] | None]
SampleLogprobs = list[dict[int, Logprob]] | FlatLogprobs
