"""Chained hashes of blocks: equal hashes mean equal tokens and equal extra keys, up to the block's end."""

from collections.abc import Sequence
from hashlib import sha256

from octavo.records import BlockKey, KeySpan, PromptEmbeds, TokenIds

_ROOT = sha256(b"octavo-prefix-2").digest()


class PrefixHasher:
    """Hashes of one request's full blocks, computed as its tokens become known.

    Each hash covers the hash before it, the block's tokens, and the extra keys of the spans that touch the block. So
    requests share the blocks before the first difference between their tokens or keys, and none after it. SHA-256
    prevents clients from constructing colliding prefixes.

    Args:
        spans: keys of parts of the prompt, in any order.
        vectors: the prompt's vectors; each block of them is keyed with their digest.

    Attributes:
        hashes: of the blocks so far.
        extra_keys: block index → the keys that its hash covers, if there are any.
    """

    def __init__(self, block_size: int, spans: Sequence[KeySpan] = (), vectors: PromptEmbeds | None = None) -> None:
        self._block_size = block_size
        self._spans = sorted(spans)
        self._vectors = vectors
        self.hashes: list[bytes] = []
        self.extra_keys: dict[int, tuple[BlockKey, ...]] = {}

    def extend(self, token_ids: TokenIds, num_tokens: int) -> list[bytes]:
        """Hashes of all full blocks among the first ``num_tokens`` tokens, and of those hashed before.

        Args:
            token_ids: all tokens of the request; those hashed before must be unchanged.
        """
        hashes, size = self.hashes, self._block_size
        first, end = len(hashes), num_tokens // size
        if first >= end:
            return hashes
        tokens = token_ids[first * size : end * size].tobytes()
        width = size * token_ids.itemsize
        contents = [tokens[start : start + width] for start in range(0, len(tokens), width)]
        if self._spans or self._vectors is not None:
            self._add_keys(contents, first)
        parent = hashes[-1] if hashes else _ROOT
        for content in contents:
            parent = sha256(parent + content).digest()
            hashes.append(parent)
        return hashes

    def keys_between(self, first: int, end: int) -> tuple[BlockKey, ...]:
        """The extra keys that the hashes ``first … end − 1`` cover."""
        return tuple(key for index in range(first, end) for key in self.extra_keys.get(index, ()))

    def _add_keys(self, contents: list[bytes], first: int) -> None:
        """Append the extra keys of the blocks from ``first`` on to their contents."""
        size, end = self._block_size, first + len(contents)
        found: dict[int, list[BlockKey]] = {}
        for span in self._spans:
            for index in range(max(first, span.start // size), min(end, -(-span.end // size))):
                found.setdefault(index, []).append(BlockKey(span.source, span.key, span.start - index * size))
        if self._vectors is not None:
            for index in range(first, min(end, -(-self._vectors.num_tokens // size))):
                digest = _digest(self._vectors, index * size, (index + 1) * size)
                found.setdefault(index, []).append(BlockKey("prompt_embeds", digest, 0))
        for index, keys in found.items():
            self.extra_keys[index] = tuple(keys)
            contents[index - first] += b"".join(map(_encoded, keys))


def _encoded(key: BlockKey) -> bytes:
    """A key as bytes, such that no two sequences of keys give the same bytes."""
    data = key.key if isinstance(key.key, bytes) else key.key.encode("utf-8", "surrogatepass")
    texts = [key.source.encode("utf-8"), data]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts) + key.offset.to_bytes(8, signed=True)


def _digest(vectors: PromptEmbeds, start: int, end: int) -> bytes:
    """Hash of the vectors of some positions, with their type and size."""
    width = len(vectors.data) // vectors.num_tokens
    header = f"{vectors.dtype} {vectors.size} ".encode()
    return sha256(header + memoryview(vectors.data)[start * width : end * width]).digest()
