"""The masks of a step's rows, filled side by side: libraries behind grammars let other threads run meanwhile."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from octavo.platforms import available_cores
from octavo.sampling.rules import BoundRow

_MAX_THREADS = 8
_MASKS_PER_THREAD = 4
"""Number of masks for which waking a thread pays off: one takes tens of microseconds."""


def fill_masks(rows: Sequence[BoundRow], width: int) -> NDArray[np.int32]:
    """Which tokens may be drawn in rows that are bound.

    Args:
        width: ``ceil(V / 32)``.

    Returns:
        ``[D, width]``, a mask per drawn token, row after row; one bit per token, lowest bit first.
    """
    ends = np.cumsum([row.num_drawn for row in rows], dtype=np.int64)
    masks = np.full((int(ends[-1]) if len(rows) else 0, width), -1, np.int32)
    of_rows = np.split(masks, ends[:-1]) if len(rows) else []
    num_threads = min(_num_threads(), len(rows) // _MASKS_PER_THREAD)
    shares = [(rows[first::num_threads], of_rows[first::num_threads]) for first in range(num_threads)]
    others = [_pool().submit(_fill, *share) for share in shares[1:]]
    _fill(*(shares[0] if shares else (rows, of_rows)))
    for other in others:
        other.result()
    return masks


def _fill(rows: Sequence[BoundRow], masks: Sequence[NDArray[np.int32]]) -> None:
    for row, of_row in zip(rows, masks, strict=True):
        for rule in row.rules[:1]:
            rule.fill(of_row, row.drafts)
        for rule in row.rules[1:]:
            allowed = np.full_like(of_row, -1)
            rule.fill(allowed, row.drafts)
            np.bitwise_and(of_row, allowed, out=of_row)


@functools.cache
def _num_threads() -> int:
    return min(available_cores(), _MAX_THREADS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_num_threads(), "masks")
