"""Policies of a cache group for finding, keeping and freeing blocks, by the kind of cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.cache.block_pool import NULL_BLOCK, BlockPool, key_suffix
from octavo.records import CacheGroup, CacheSpec, ChunkedLocal, Full, Latent, SlidingWindow, State

UNLIMITED = (1 << 31) - 1
"""More tokens than any sequence has."""


class GroupPolicy(ABC):
    """The rules of one cache group.

    Args:
        index: of the group.
    """

    needs_all_blocks = False
    """Whether a cached prefix needs every one of its blocks in the cache, so that the first miss ends the search."""

    is_written_last = False
    """Whether rows of a step must not read the blocks that others fill in it, as a layer does not write them first."""

    def __init__(self, index: int, group: CacheGroup, pool: BlockPool) -> None:
        self.block_size = group.block_size
        self.pool = pool
        self._suffix = key_suffix(index)

    @abstractmethod
    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        """The longest cached prefix of at most ``max_blocks`` blocks.

        Args:
            hashes: of the group's blocks.

        Returns:
            The blocks; null blocks for content that the group does not need.
        """

    @abstractmethod
    def num_dead_blocks(self, num_computed: int) -> int:
        """Number of leading blocks that no query at position ``num_computed`` or later needs."""

    @abstractmethod
    def num_tokens_before_drop(self, num_dropped: int) -> int:
        """The smallest ``num_computed`` for which more than ``num_dropped`` leading blocks are dead."""

    def lookup(self, block_hash: bytes) -> int | None:
        """The block of this group with that content, if it is cached."""
        return self.pool.lookup(block_hash + self._suffix)


class FullPolicy(GroupPolicy):
    """Every query needs all blocks before it: none is ever dead."""

    needs_all_blocks = True

    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        return self.pool.lookup_run(hashes[:max_blocks], self._suffix)

    def num_dead_blocks(self, num_computed: int) -> int:
        return 0

    def num_tokens_before_drop(self, num_dropped: int) -> int:
        return UNLIMITED


class WindowPolicy(GroupPolicy):
    """A query needs the blocks of itself and of the ``reach − 1`` tokens before it."""

    def __init__(self, index: int, group: CacheGroup, pool: BlockPool) -> None:
        super().__init__(index, group, pool)
        assert group.spec.reach is not None
        self.reach = group.spec.reach

    def find_prefix(self, hashes: Sequence[bytes], max_blocks: int) -> list[int]:
        """Only the blocks in the next query's reach must be cached: search from the end for a run of them."""
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
        return max(0, num_computed - self.reach + 1) // self.block_size

    def num_tokens_before_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.reach - 1


class ChunkPolicy(WindowPolicy):
    """A query needs the blocks from the beginning of its chunk on; at a chunk's beginning, none."""

    def num_dead_blocks(self, num_computed: int) -> int:
        return num_computed // self.reach * self.reach // self.block_size

    def num_tokens_before_drop(self, num_dropped: int) -> int:
        return -(-(num_dropped + 1) * self.block_size // self.reach) * self.reach


class StatePolicy(WindowPolicy):
    """A token needs the block with the state after the token before it; a block's last state is a snapshot."""

    is_written_last = True


_POLICIES: dict[type[CacheSpec], type[GroupPolicy]] = {
    Full: FullPolicy,
    SlidingWindow: WindowPolicy,
    ChunkedLocal: ChunkPolicy,
    Latent: FullPolicy,
    State: StatePolicy,
}


def make_policies(groups: Sequence[CacheGroup], pool: BlockPool) -> list[GroupPolicy]:
    """The policy of each group, in order."""
    return [_POLICIES[type(group.spec)](index, group, pool) for index, group in enumerate(groups)]
