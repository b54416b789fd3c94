"""Predicts the peak cache usage if one more request is admitted.

Requests grow by one token per step and free everything when they end, so usage peaks right before some request ends. At
that moment, requests with at least as many tokens to go have grown by as many tokens, and the others have ended
(arXiv:2507.10150 admits by the same peak). Ends are not known: a request is expected to generate the recent mean
number of tokens, or up to its limit if that is less.
"""

import numpy as np

from octavo.scheduling.request import Request
from octavo.scheduling.rows import Rows

_FIRST_GUESS = 128.0
_MEMORY = 64
"""Approximate number of finished requests over which the mean answer length is taken."""


class Outlook:
    """Expected lengths of requests, and the peak cache usage that follows from them."""

    def __init__(self) -> None:
        self._mean_answer = _FIRST_GUESS

    def note_end(self, num_generated: int) -> None:
        """Update the mean with a finished request's number of generated tokens."""
        self._mean_answer += (num_generated - self._mean_answer) / _MEMORY

    def expected_len(self, request: Request) -> int:
        """The expected number of tokens, prompt included, at which a request ends."""
        expected = max(request.num_prompt + int(self._mean_answer), len(request.token_ids) + 1)
        return min(expected, request.max_len)

    def fits(self, rows: Rows, num_held: int, num_tokens: int, expected_len: int, room: int) -> bool:
        """Whether ``room`` more tokens in the cache suffice at peak usage, if one more request runs.

        Args:
            num_held, num_tokens: the new request's tokens in the cache already, and all its tokens so far.
            expected_len: expected number of tokens at which it ends.
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
        # In descending order of remaining tokens: when the k-th request ends, k are left, each longer by its remaining
        # tokens.
        fullest = np.cumsum(lengths, dtype=np.int64) + np.arange(1, len(rest) + 1) * rest
        return int(fullest.max()) <= room
