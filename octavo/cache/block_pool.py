"""The pool of cache blocks: reference counts, a free list in order of last use, and the prefix index."""

from collections.abc import Iterable, Sequence

from octavo.cache.listeners import BlockListener

NULL_BLOCK = 0
"""Placeholder in block tables for blocks that are never read; never allocated."""

HASH_BYTES = 32
"""Length of a block hash."""

PrefixKey = bytes
"""Identifies a cached block's content: the chained hash of its tokens, and the cache group."""


def key_suffix(group: int) -> bytes:
    """What follows a block hash in the keys of one cache group.

    Nothing in the first group's: its keys are then the very objects that the hasher keeps, which are found three times
    as fast as copies.
    """
    return group.to_bytes(2) if group else b""


def prefix_key(block_hash: bytes, group: int) -> PrefixKey:
    """The key of a block's content in one cache group."""
    return block_hash + key_suffix(group)


def split_key(key: PrefixKey) -> tuple[bytes, int]:
    """The block hash and the cache group of which a key was made."""
    return key[:HASH_BYTES], int.from_bytes(key[HASH_BYTES:])


class BlockPool:
    """Allocates and frees the blocks ``1 … num_blocks − 1``.

    A free block stays in the prefix index until it is allocated again, so a later hit costs nothing. The free list is
    doubly linked through two arrays: every operation takes constant time.

    Args:
        num_blocks: total number of blocks including the null block; at least 2.
        listeners: told what leaves the prefix index; the cache manager, which knows contents, tells what enters it.
    """

    def __init__(self, num_blocks: int, listeners: Sequence[BlockListener] = ()) -> None:
        assert num_blocks >= 2
        self.num_blocks = num_blocks
        self._listeners = listeners
        self._ref_counts = [0] * num_blocks
        self._keys: list[PrefixKey | None] = [None] * num_blocks
        self._index: dict[PrefixKey, int] = {}
        # The null block's entries in the arrays are the head and tail of the ring.
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._num_free = num_blocks - 1

    @property
    def num_free(self) -> int:
        """Number of blocks without a reference, whether they cache content or not."""
        return self._num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that are referenced, 0 to 1."""
        return 1.0 - self._num_free / (self.num_blocks - 1)

    def ref_count(self, block: int) -> int:
        """Number of requests that hold the block."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks with one reference each, least recently used first; they leave the prefix index.

        The caller has checked that ``count`` blocks are free.
        """
        assert count <= self._num_free
        following, keys, ref_counts = self._next, self._keys, self._ref_counts
        blocks = []
        cached = []
        block = NULL_BLOCK
        for _ in range(count):
            block = following[block]
            blocks.append(block)
            ref_counts[block] = 1
            if keys[block] is not None:
                cached.append(block)
        if cached:
            self._forget(cached)
        first = following[block]
        following[NULL_BLOCK], self._previous[first] = first, NULL_BLOCK
        self._num_free -= count
        return blocks

    def lookup(self, key: PrefixKey) -> int | None:
        """The block that caches this content, if any."""
        return self._index.get(key)

    def lookup_run(self, hashes: Sequence[bytes], suffix: bytes) -> list[int]:
        """The blocks that cache these contents, up to the first content that is not cached.

        Args:
            suffix: the cache group's :func:`key_suffix`.
        """
        find, blocks = self._index.get, []
        for block_hash in hashes:
            block = find(block_hash + suffix)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, null blocks excepted."""
        following, previous, ref_counts = self._next, self._previous, self._ref_counts
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if ref_counts[block] == 0:
                before, after = previous[block], following[block]
                following[before], previous[after] = after, before
                self._num_free -= 1
            ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference from each block, null blocks excepted.

        Blocks that become free are reused in the order given, after those already free; blocks that cache nothing
        are reused before all others.
        """
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            assert self._ref_counts[block] > 0
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._link(block, at_front=self._keys[block] is None)

    def publish(self, block: int, key: PrefixKey) -> bool:
        """Enter a full block's content into the prefix index, unless the content or the block is in it already.

        Returns:
            Whether it was entered.
        """
        if self._keys[block] is not None or self._index.setdefault(key, block) != block:
            return False
        self._keys[block] = key
        return True

    def retract(self, blocks: Iterable[int]) -> None:
        """Remove blocks with invalid content from the prefix index."""
        self._forget(blocks)

    def clear_index(self) -> bool:
        """Clear the prefix index; returns False, and does nothing, while any block is held."""
        if self._num_free != self.num_blocks - 1:
            return False
        self._index.clear()
        self._keys = [None] * self.num_blocks
        for listener in self._listeners:
            listener.cleared()
        return True

    def _forget(self, blocks: Iterable[int]) -> None:
        gone = []
        for block in blocks:
            key = self._keys[block]
            if key is not None:
                del self._index[key]
                self._keys[block] = None
                gone.append(key)
        if gone and self._listeners:
            self._report_removed(gone)

    def _report_removed(self, keys: list[PrefixKey]) -> None:
        by_group: dict[int, list[bytes]] = {}
        for key in keys:
            block_hash, group = split_key(key)
            by_group.setdefault(group, []).append(block_hash)
        for listener in self._listeners:
            for group, hashes in by_group.items():
                listener.removed(hashes, group)

    def _link(self, block: int, *, at_front: bool) -> None:
        before = NULL_BLOCK if at_front else self._previous[NULL_BLOCK]
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._num_free += 1
