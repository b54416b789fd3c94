"""Detects answers that end in a repeated pattern (``repetition_detection``)."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.records import RepetitionDetectionParams


class RepetitionDetector:
    """A :class:`~octavo.sampling.rules.TokenRule` that ends an answer once it ends in repetitions of a pattern.

    For every pattern size ``s``, it counts how many tokens in a row have equalled the token ``s`` places before.

    Args:
        earlier: tokens that were generated before (when a request is replayed).
        min_tokens: the answer does not end before it has as many tokens.
    """

    is_binding = False
    error = None

    def __init__(self, params: RepetitionDetectionParams, earlier: Iterable[int] = (), min_tokens: int = 0) -> None:
        self._sizes = np.arange(max(1, params.min_pattern_size), params.max_pattern_size + 1)
        self._needed = self._sizes * (params.min_count - 1)
        self._num_equal = np.zeros_like(self._sizes)
        self._latest = np.full(params.max_pattern_size, -1)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.finish_reason: str | None = None
        for token_id in earlier:
            self.push(token_id)

    def push(self, token_id: int) -> bool:
        """Add the next token; returns whether the answer now ends in repetitions."""
        self._num_tokens += 1
        self._num_equal = (self._num_equal + 1) * (self._latest[self._sizes - 1] == token_id)
        self._latest[1:] = self._latest[:-1]
        self._latest[0] = token_id
        return bool((self._num_equal >= self._needed).any())

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take in tokens up to the one that completes the repetitions; returns how many."""
        for count, token_id in enumerate(token_ids, 1):
            if self.push(token_id) and self._num_tokens >= self._min_tokens:
                self.finish_reason = "repetition"
                return count
        return len(token_ids)

    def fill(self, masks: NDArray[np.int32], drafts: Sequence[int]) -> None:
        """Forbids nothing."""
