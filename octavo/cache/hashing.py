"""Chained hashes of blocks of tokens: equal hashes mean equal prefixes."""

import hashlib
from array import array
from collections.abc import Sequence

_DOMAIN = b"octavo-prefix-1"


class PrefixHasher:
    """Hashes of one request's full blocks, computed as its tokens become known.

    Each hash covers the block's tokens and the hash before it; the first one covers the extra keys
    (a tenant's salt), so that requests with different keys never share. SHA-256 keeps a client from
    making two prefixes collide on purpose.
    """

    def __init__(self, block_size: int, extra_keys: Sequence[str] = ()) -> None:
        self._block_size = block_size
        root = hashlib.sha256(_DOMAIN)
        for key in extra_keys:
            data = key.encode("utf-8", "surrogatepass")
            root.update(len(data).to_bytes(8, "little") + data)
        self._root = root.digest()
        self.hashes: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Hashes of all full blocks among the first ``num_tokens`` tokens.

        Args:
            token_ids: all tokens of the request; those hashed before must be unchanged.
        """
        size = self._block_size
        while (len(self.hashes) + 1) * size <= num_tokens:
            start = len(self.hashes) * size
            parent = self.hashes[-1] if self.hashes else self._root
            tokens = array("i", token_ids[start : start + size]).tobytes()
            self.hashes.append(hashlib.sha256(parent + tokens).digest())
        return self.hashes
