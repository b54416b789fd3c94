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
    """What running requests will come to hold."""

    def __init__(self) -> None:
        self._mean_answer = _FIRST_GUESS

    def note_end(self, num_generated: int) -> None:
        """Learn from a request that wrote so many tokens."""
        self._mean_answer += (num_generated - self._mean_answer) / _MEMORY

    def expected_len(self, request: Request) -> int:
        """Tokens at which a request will probably end."""
        expected = max(request.num_prompt + int(self._mean_answer), len(request.token_ids) + 1)
        return min(expected, request.max_len)

    def fits(self, rows: Rows, num_held: int, num_tokens: int, expected_len: int, room: int) -> bool:
        """Whether so many more tokens in the cache are enough until its fullest moment, if one more request runs.

        Args:
            num_held, num_tokens: tokens of the new request: those in the cache already, and all so far.
            expected_len: tokens at which it will probably end.
        """
        order = rows.order
        lengths = rows.num_tokens[order]
        ends = np.maximum(rows.expected_len[order], lengths)
        room += int(rows.num_computed[order].sum()) + num_held
        if int(ends.sum()) + expected_len <= room:
            return True
        lengths = np.append(lengths, num_tokens)
        rest = np.append(ends, expected_len) - lengths
        last_first = np.argsort(-rest)
        lengths, rest = lengths[last_first], rest[last_first]
        # When the k-th of these ends, k are there, each longer by its rest.
        fullest = np.cumsum(lengths, dtype=np.int64) + np.arange(1, len(rest) + 1) * rest
        return int(fullest.max()) <= room
