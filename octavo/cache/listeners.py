"""Who watches blocks: subscribers to what enters and leaves the prefix index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.records import BlockKey, TokenIds


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Consecutive blocks of one request that entered the prefix index.

    Attributes:
        group: their cache group.
        parent_hash: hash of the block before the first one; None at the beginning of a sequence.
        hashes: one per block.
        token_ids: ``[len(hashes) × block_size]``; a view that is valid only during the call.
        extra_keys: one tuple per block: what its hash covers beside tokens and parent.
    """

    group: int
    block_size: int
    parent_hash: bytes | None
    hashes: Sequence[bytes]
    token_ids: TokenIds
    extra_keys: Sequence[tuple[BlockKey, ...]]


class BlockListener(Protocol):
    """A subscriber to the life of cached blocks.

    A hash is stored at most once per group before it is removed. Calls come from the scheduler while it makes a step
    or takes its result, so they must return quickly, and must not raise.
    """

    def stored(self, blocks: StoredBlocks) -> None:
        """Blocks can be found from now on. The step that fills them may not have run yet."""

    def removed(self, hashes: Sequence[bytes], group: int) -> None:
        """Blocks can no longer be found: they are reused, or their content is invalid."""

    def cleared(self) -> None:
        """No block can be found any more."""
