"""What makes equal tokens differ: keys of spans of a prompt, which prefix hashes cover."""

from typing import NamedTuple, Self

import msgspec


class KeySpan(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Tokens whose key/value entries depend on more than the token ids.

    Every block that the span touches is hashed with its key; blocks before it are not, and blocks after it differ
    through the chain of hashes. A key that concerns the whole request is a span of its first token only.

    Attributes:
        start, end: positions of the first token and of the token after the last one.
        key: identifies what lies below the tokens, such as the hash of an image; equal keys mean equal content.
        source: the request field or feature that the key comes from; keys of different sources are never equal.
    """

    start: int
    end: int
    key: str
    source: str

    @classmethod
    def of_request(cls, key: str, source: str) -> Self:
        """The span for a key of the whole request."""
        return cls(0, 1, key, source)


class BlockKey(NamedTuple):
    """A key that one block is hashed with.

    Attributes:
        source: see :class:`KeySpan`.
        key: the span's key; for a prompt of vectors, the digest of the block's vectors.
        offset: the span's first token relative to the block's; negative if it begins in an earlier block.
    """

    source: str
    key: str | bytes
    offset: int
