"""How far the cache will fill up if one more request runs.

Requests grow by a token a step and give everything back when they end, so what counts is the fullest moment to come:
when one ends, those that are to write as much or more have grown by what it wrote, and the others have gone
(arXiv:2507.10150 admits by the same moment). Ends are not known; a request is taken to write as much as requests wrote
of late, or up to its limit if that comes first.
"""

import numpy as np

from octavo.scheduling.request import Request
from octavo.scheduling.rows import Rows

_FIRST_GUESS = 128.0
_MEMORY = 64
"""Ends over which the mean length of answers is taken, roughly."""


class Outlook:
    """What running requests will come to hold, in tokens."""

    def __init__(self) -> None:
        self._mean_answer = _FIRST_GUESS

    def note_end(self, num_generated: int) -> None:
        """Learn from a request that wrote so many tokens."""
        self._mean_answer += (num_generated - self._mean_answer) / _MEMORY

    def expected_len(self, request: Request) -> int:
        """Tokens at which a request will probably end."""
        expected = max(request.num_prompt + int(self._mean_answer), len(request.token_ids) + 1)
        return min(expected, request.max_len)

    def growth(self, rows: Rows, num_held: int, num_tokens: int, expected_len: int) -> int:
        """Tokens that the cache will have to take until its fullest moment, if one more request runs.

        Args:
            num_held, num_tokens: tokens of the new request: those in the cache already, and all so far.
            expected_len: tokens at which it will probably end.
        """
        lengths = np.append(rows.num_tokens[rows.order], num_tokens)
        rest = np.maximum(np.append(rows.expected_len[rows.order], expected_len) - lengths, 0)
        last_first = np.argsort(-rest, kind="stable")
        lengths, rest = lengths[last_first], rest[last_first]
        # When the k-th of these ends, k are there, each longer by its rest.
        fullest = np.max(np.cumsum(lengths, dtype=np.int64) + np.arange(1, len(rest) + 1) * rest)
        return int(fullest) - int(rows.num_computed[rows.order].sum()) - num_held
