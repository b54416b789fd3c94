"""A limit on how long a model reasons: at its end, what closes the reasoning is all that may come."""

from collections.abc import Sequence

from octavo.records import ReasoningTags


class ReasoningLimit:
    """Follows one text in and out of its reasoning.

    Args:
        budget: tokens that all reasoning of the text may have together, tags not counted.

    Attributes:
        is_open: whether the text is in its reasoning.
    """

    def __init__(self, budget: int, tags: ReasoningTags) -> None:
        self._budget = budget
        self._num_tokens = 0
        self._starts = [tuple(start) for start in tags.start if start]
        self._forced_end = tuple(tags.forced_end or tags.end)
        self._ends = {self._forced_end, tuple(tags.end)}
        self.is_open = tags.is_open
        self._longest = max(map(len, (*self._starts, *self._ends)))
        self._last: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the text's reasoning so far."""
        return self._num_tokens

    @property
    def forced_token(self) -> int | None:
        """The only token that may come next; None if any may."""
        if not self.is_open:
            return None
        num_end = self._num_end_tokens()
        return self._forced_end[num_end] if self._num_tokens - num_end >= self._budget else None

    def accept(self, token_id: int) -> None:
        """Take in the text's next token."""
        self._last = (*self._last, token_id)[-self._longest :]
        if not self.is_open:
            if any(_ends_with(self._last, start) for start in self._starts):
                self.is_open, self._last = True, ()
        elif found := [end for end in self._ends if _ends_with(self._last, end)]:
            self.is_open, self._last = False, ()
            self._num_tokens -= max(map(len, found)) - 1
        else:
            self._num_tokens += 1

    def _num_end_tokens(self) -> int:
        """How much of what ends reasoning by force stands at the text's end already."""
        end = self._forced_end
        return next((size for size in range(len(end) - 1, 0, -1) if _ends_with(self._last, end[:size])), 0)


def _ends_with(tokens: Sequence[int], tag: Sequence[int]) -> bool:
    return len(tokens) >= len(tag) and tuple(tokens[-len(tag) :]) == tuple(tag)
