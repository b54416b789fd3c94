"""Token ids as arrays: between frontends, engine and runner they travel as int32 numbers, never as Python objects."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
"""``[N]`` int32, not to be changed: requests, device state and messages share it."""

_WIDTH = np.dtype(np.int32).itemsize


def as_token_ids(token_ids: Sequence[int]) -> TokenIds:
    """Token ids as an array.

    Raises:
        OverflowError: one does not fit 32 bits.
    """
    # Several times faster than NumPy's own way from a list, which looks at each element twice.
    return np.frombuffer(array("i", token_ids), np.int32) if len(token_ids) else NO_TOKEN_IDS


def token_ids_from_bytes(data: object) -> TokenIds:
    """Token ids from the bytes of an array, without a copy.

    Raises:
        ValueError: these are not the bytes of int32 numbers.
    """
    if not isinstance(data, bytes) or len(data) % _WIDTH:
        raise ValueError("token ids must be the bytes of 32-bit numbers")
    return np.frombuffer(data, np.int32)


NO_TOKEN_IDS = token_ids_from_bytes(b"")
