"""The masks of a step's rows, filled side by side: libraries behind grammars let other threads run meanwhile."""

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.rules import TokenRule

_MAX_THREADS = 8
_MASKS_PER_THREAD = 4
"""Number of masks for which waking a thread pays off: one takes tens of microseconds."""

Rules = Sequence[TokenRule]


def fill_masks(rules: Sequence[Rules], width: int) -> NDArray[np.int32]:
    """Which tokens may come next in each of ``M`` rows.

    Args:
        rules: per row, the rules that bind its next token.
        width: ``ceil(V / 32)``.

    Returns:
        ``[M, width]``, one bit per token, lowest bit first.
    """
    masks = np.full((len(rules), width), -1, np.int32)
    num_threads = min(_num_threads(), len(masks) // _MASKS_PER_THREAD)
    shares = [(rules[first::num_threads], masks[first::num_threads]) for first in range(num_threads)]
    others = [_pool().submit(_fill, *share) for share in shares[1:]]
    _fill(*(shares[0] if shares else (rules, masks)))
    for other in others:
        other.result()
    return masks


def _fill(rules: Sequence[Rules], masks: NDArray[np.int32]) -> None:
    for of_row, mask in zip(rules, masks, strict=True):
        for rule in of_row[:1]:
            rule.fill(mask)
        for rule in of_row[1:]:
            allowed = np.full_like(mask, -1)
            rule.fill(allowed)
            np.bitwise_and(mask, allowed, out=mask)


@functools.cache
def _num_threads() -> int:
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MAX_THREADS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_num_threads(), "masks")
