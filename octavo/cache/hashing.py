"""Chained hashes of blocks: equal hashes mean equal tokens and equal extra keys, up to the block's end."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from octavo.records import BlockKey, KeySpan, PromptEmbeds, TokenIds

_ROOT = sha256(b"octavo-prefix-2").digest()
_RUN = 64
"""Blocks whose hashes are kept together."""
_NUM_KEPT_RUNS = 2048
"""Runs whose hashes are kept, the last used ones: about 18 MB with blocks of 16 tokens."""

_Keys = tuple[tuple[int, bytes], ...]
"""Pairs of a block of a run and its extra keys, encoded."""


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
        tokens, width = token_ids[first * size : end * size].tobytes(), size * token_ids.itemsize
        encoded_keys = self._add_keys(first, end) if self._spans or self._vectors is not None else {}
        index = first
        while index < end:
            stop = min(end, index - index % _RUN + _RUN)
            content = tokens[(index - first) * width : (stop - first) * width]
            keys: _Keys = ()
            if encoded_keys:
                keys = tuple((i - index, encoded_keys[i]) for i in range(index, stop) if i in encoded_keys)
            # What another request has hashed is found with one look, as long as it is a whole run.
            hash_blocks = _hash_run if stop - index == _RUN else _hash_blocks
            hashes += hash_blocks(hashes[-1] if hashes else _ROOT, content, width, keys)
            index = stop
        return hashes

    def keys_between(self, first: int, end: int) -> tuple[BlockKey, ...]:
        """The extra keys that the hashes ``first … end − 1`` cover."""
        return tuple(key for index in range(first, end) for key in self.extra_keys.get(index, ()))

    def _add_keys(self, first: int, end: int) -> dict[int, bytes]:
        """Find the extra keys of some blocks; returns them, encoded, by block."""
        size = self._block_size
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
        return {index: b"".join(map(_encoded, keys)) for index, keys in found.items()}


def _hash_blocks(parent: bytes, content: bytes, width: int, keys: _Keys) -> list[bytes]:
    """The hashes of consecutive blocks of ``width`` bytes each."""
    hashes, extra = [], dict(keys)
    for index, start in enumerate(range(0, len(content), width)):
        block = content[start : start + width]
        parent = sha256(parent + block + extra[index] if index in extra else parent + block).digest()
        hashes.append(parent)
    return hashes


@lru_cache(_NUM_KEPT_RUNS)
def _hash_run(parent: bytes, content: bytes, width: int, keys: _Keys) -> tuple[bytes, ...]:
    """:func:`_hash_blocks`, kept."""
    return tuple(_hash_blocks(parent, content, width, keys))


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
