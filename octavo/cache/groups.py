"""Policies of a cache group for finding, keeping and freeing blocks: full attention or sliding window."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.cache.block_pool import NULL_BLOCK, BlockPool, key_suffix
from octavo.records import CacheGroup

UNLIMITED = (1 << 31) - 1
"""More tokens than any sequence has."""


class GroupPolicy(ABC):
    """The rules of one cache group.

    Args:
        group: index of the group.
        block_size: tokens per block.
    """

    needs_all_blocks = False
    """Whether a cached prefix needs every one of its blocks in the cache, so that the first miss ends the search."""

    def __init__(self, group: int, block_size: int, pool: BlockPool) -> None:
        self.group = group
        self.block_size = block_size
        self.pool = pool
        self._suffix = key_suffix(group)

    @abstractmethod
    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        """The longest cached prefix of at most ``max_blocks`` blocks.

        Returns:
            The blocks; null blocks for content that the group does not need.
        """

    @abstractmethod
    def num_dead_blocks(self, num_computed: int) -> int:
        """Number of leading blocks that no query at position ``num_computed`` or later attends to."""

    @abstractmethod
    def num_tokens_before_drop(self, num_dropped: int) -> int:
        """The smallest ``num_computed`` for which more than ``num_dropped`` leading blocks are dead."""

    @abstractmethod
    def max_blocks(self, num_tokens: int, max_chunk: int) -> int:
        """Maximum number of blocks that a request of ``num_tokens`` tokens holds at once, given the longest chunk."""

    def lookup(self, block_hash: bytes) -> int | None:
        """The block of this group with that content, if it is cached."""
        return self.pool.lookup(block_hash + self._suffix)


class FullPolicy(GroupPolicy):
    """Full causal attention: no block is ever dead."""

    needs_all_blocks = True

    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        return self.pool.lookup_run(hashes[:max_blocks], self._suffix)

    def num_dead_blocks(self, num_computed: int) -> int:
        return 0

    def num_tokens_before_drop(self, num_dropped: int) -> int:
        return UNLIMITED

    def max_blocks(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)


class WindowPolicy(GroupPolicy):
    """Sliding window: a query attends to itself and the ``window − 1`` tokens before it."""

    def __init__(self, group: int, block_size: int, pool: BlockPool, window: int) -> None:
        super().__init__(group, block_size, pool)
        self.window = window

    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        """Only the blocks in the next query's window must be cached: search from the end for a run of them."""
        blocks: list[int] = [NULL_BLOCK] * min(max_blocks, len(hashes))
        end = len(blocks)  # the prefix under test is blocks[:end]
        index = end - 1
        while index >= self.num_dead_blocks(end * self.block_size):
            block = self.lookup(hashes[index])
            if block is None:
                end = index
                blocks[index:] = []
            else:
                blocks[index] = block
            index -= 1
        dead = self.num_dead_blocks(end * self.block_size)
        blocks[:dead] = [NULL_BLOCK] * dead
        return blocks

    def num_dead_blocks(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def num_tokens_before_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def max_blocks(self, num_tokens: int, max_chunk: int) -> int:
        # The window before the chunk's first query, the chunk, and partial blocks on either side.
        spanned = -(-(self.window - 1 + max_chunk) // self.block_size) + 1
        return min(spanned, -(-num_tokens // self.block_size))


def make_policies(groups: Sequence[CacheGroup], block_size: int, pool: BlockPool) -> list[GroupPolicy]:
    """The policy of each group, in order."""
    return [
        FullPolicy(index, block_size, pool)
        if group.window is None
        else WindowPolicy(index, block_size, pool, group.window)
        for index, group in enumerate(groups)
    ]
