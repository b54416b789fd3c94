"""Chained hashes of blocks of tokens: equal hashes mean equal prefixes."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

TokenIds = Sequence[int] | NDArray[np.int32]
"""Token ids; arrays are hashed several times faster than lists."""

_DOMAIN = b"octavo-prefix-1"


class PrefixHasher:
    """Hashes of one request's full blocks, computed as its tokens become known.

    Each hash covers the block's tokens and the hash before it; the first one covers the extra keys
    (such as a tenant's salt), so that requests with different keys never share blocks. SHA-256 prevents clients from
    constructing colliding prefixes.
    """

    def __init__(self, block_size: int, extra_keys: Sequence[str] = ()) -> None:
        self._block_size = block_size
        root = sha256(_DOMAIN)
        for key in extra_keys:
            data = key.encode("utf-8", "surrogatepass")
            root.update(len(data).to_bytes(8, "little") + data)
        self._root = root.digest()
        self.hashes: list[bytes] = []

    def extend(self, token_ids: TokenIds, num_tokens: int) -> list[bytes]:
        """Hashes of all full blocks among the first ``num_tokens`` tokens.

        Args:
            token_ids: all tokens of the request; those hashed before must be unchanged.
        """
        hashes, size = self.hashes, self._block_size
        first, end = len(hashes), num_tokens // size
        if first >= end:
            return hashes
        new = token_ids[first * size : end * size]
        tokens = (new if isinstance(new, np.ndarray) else np.array(new, np.int32)).tobytes()
        parent = hashes[-1] if hashes else self._root
        width = size * np.dtype(np.int32).itemsize
        for start in range(0, len(tokens), width):
            parent = sha256(parent + tokens[start : start + width]).digest()
            hashes.append(parent)
        return hashes
