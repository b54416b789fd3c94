"""The masks of a step, side by side: the libraries behind grammars let other threads run while they fill one."""

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.grammar.constraint import Constraint

_MOST_THREADS = 8
_LEAST_MASKS = 4
"""Masks worth a thread's waking up: one takes some tens of microseconds."""


def fill_masks(constraints: Sequence[Constraint], masks: Sequence[NDArray[np.int32]]) -> None:
    """Write each constraint's mask; see :meth:`Constraint.fill`."""
    num_threads = min(_num_threads(), len(masks) // _LEAST_MASKS)
    shares = [(constraints[first::num_threads], masks[first::num_threads]) for first in range(num_threads)]
    others = [_pool().submit(_fill, *share) for share in shares[1:]]
    _fill(*(shares[0] if shares else (constraints, masks)))
    for other in others:
        other.result()


def _fill(constraints: Sequence[Constraint], masks: Sequence[NDArray[np.int32]]) -> None:
    for constraint, mask in zip(constraints, masks, strict=True):
        constraint.fill(mask)


@functools.cache
def _num_threads() -> int:
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MOST_THREADS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_num_threads(), "masks")
