"""Detects answers that end in a repeated pattern (``repetition_detection``)."""

from collections.abc import Iterable

import numpy as np

from octavo.records import RepetitionDetectionParams


class RepetitionDetector:
    """Follows one answer, and detects when it ends in several repetitions of a pattern.

    For every pattern size ``s``, it counts how many tokens in a row have equalled the token ``s`` places before.

    Args:
        earlier: tokens that were generated before (when a request is replayed).
    """

    def __init__(self, params: RepetitionDetectionParams, earlier: Iterable[int] = ()) -> None:
        self._sizes = np.arange(max(1, params.min_pattern_size), params.max_pattern_size + 1)
        self._needed = self._sizes * (params.min_count - 1)
        self._num_equal = np.zeros_like(self._sizes)
        self._latest = np.full(params.max_pattern_size, -1)
        for token_id in earlier:
            self.push(token_id)

    def push(self, token_id: int) -> bool:
        """Add the next token; returns whether the answer now ends in repetitions."""
        self._num_equal = (self._num_equal + 1) * (self._latest[self._sizes - 1] == token_id)
        self._latest[1:] = self._latest[:-1]
        self._latest[0] = token_id
        return bool((self._num_equal >= self._needed).any())
