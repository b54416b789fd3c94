"""Log-probabilities in request outputs."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

from octavo.records import FlatLogprobs, Logprob, SampleLogprobs, SamplingParams, TokenLogprobs
from octavo.tokenization.tokenizer import Tokenizer


def sample_logprobs(params: SamplingParams) -> SampleLogprobs:
    """An empty container for a completion's log-probabilities, of the requested kind."""
    return FlatLogprobs() if params.flat_logprobs else []


def format_logprobs(row: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Token id → :class:`Logprob`: the sampled (or prompt) token first, then the top ones with ranks from 1, or
    those that were requested, without ranks.

    Tokens read as they would by themselves; without a tokenizer they have no text.
    """
    token_ids, logprobs = row.token_ids, row.logprobs
    text = tokenizer.token_text if tokenizer is not None else lambda _: None
    ranks = repeat(None) if row.is_listed else range(len(token_ids))
    formatted = dict(zip(token_ids, map(Logprob, logprobs, ranks, map(text, token_ids)), strict=True))
    formatted[token_ids[0]] = Logprob(logprobs[0], row.rank, text(token_ids[0]))
    return formatted


class LatePromptLogprobs(Sequence[dict[int, Logprob] | None]):
    """A prompt's log-probabilities, each position's made when it is looked at, and not kept.

    There may be millions: as objects they would take gigabytes, and seconds to make in one go. It equals a list of
    the same.

    Args:
        rows: of the positions from 1 on; the first has none.
    """

    __slots__ = ("_rows", "_tokenizer")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> None:
        self._rows = rows
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._rows) + 1

    def __iter__(self) -> Iterator[dict[int, Logprob] | None]:
        yield None
        for row in self._rows:
            yield format_logprobs(row, self._tokenizer)

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob] | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[int, Logprob] | None]: ...

    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | list[dict[int, Logprob] | None] | None:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return format_logprobs(self._rows[place - 1], self._tokenizer) if place else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatePromptLogprobs | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<log-probabilities of {len(self)} tokens>"
