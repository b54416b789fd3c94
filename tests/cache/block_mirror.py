"""A listener that knows of the prefix index only what it is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cache import StoredBlocks
from octavo.records import BlockKey


@dataclass(frozen=True)
class MirroredBlock:
    """One block as it was reported."""

    parent_hash: bytes | None
    token_ids: tuple[int, ...]
    extra_keys: tuple[BlockKey, ...]


class BlockMirror:
    """Rebuilds the index from reports.

    Attributes:
        blocks: by cache group and hash.
        reports: the reports of stored blocks, in order.
    """

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, bytes], MirroredBlock] = {}
        self.reports: list[StoredBlocks] = []

    def stored(self, blocks: StoredBlocks) -> None:
        assert len(blocks.hashes) == len(blocks.extra_keys) == len(blocks.token_ids) / blocks.block_size > 0
        self.reports.append(blocks)
        parent = blocks.parent_hash
        for index, block_hash in enumerate(blocks.hashes):
            first = index * blocks.block_size
            token_ids = tuple(int(token_id) for token_id in blocks.token_ids[first : first + blocks.block_size])
            assert (blocks.group, block_hash) not in self.blocks, "stored twice"
            self.blocks[blocks.group, block_hash] = MirroredBlock(parent, token_ids, blocks.extra_keys[index])
            parent = block_hash

    def removed(self, hashes: Sequence[bytes], group: int) -> None:
        for block_hash in hashes:
            del self.blocks[group, block_hash]

    def cleared(self) -> None:
        self.blocks.clear()
