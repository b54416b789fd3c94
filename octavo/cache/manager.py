"""Block tables of requests over all cache groups: looks up cached prefixes, grows and frees."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from octavo.cache.block_pool import NULL_BLOCK, BlockPool, key_suffix
from octavo.cache.groups import UNLIMITED, GroupPolicy, make_policies
from octavo.cache.hashing import PrefixHasher
from octavo.cache.listeners import BlockListener, StoredBlocks
from octavo.records import BlockUpdate, CacheGroup, TokenIds

_NUM_FIRST_HASHES = 64
"""Number of blocks that are hashed before the first look into the prefix index; doubled as long as it hits."""


@dataclass(slots=True)
class RequestCache:
    """One request's share of the cache.

    Attributes:
        hasher: hashes of its blocks; None if its blocks are never shared.
        tables: per group, its block table; null blocks for content that is no longer needed.
        num_dropped: per group, number of leading blocks freed because no later query needs them.
        num_published: per group, number of blocks that were offered to the prefix index.
        slot: the request's slot in device state.
    """

    hasher: PrefixHasher | None
    tables: list[list[int]]
    num_dropped: list[int]
    num_published: list[int]
    slot: int = -1


class CacheManager:
    """The cache as the scheduler sees it: which request holds which blocks.

    Args:
        hash_size: tokens per prefix hash; every group's block size is a multiple of it.
        max_chunk: maximum number of tokens of one request in a step.
        listeners: told what enters and leaves the prefix index.

    Attributes:
        drops_blocks: whether any group frees blocks while requests run.
        defers_reads: whether any group's blocks must not be read in the step that fills them.
    """

    def __init__(
        self,
        num_blocks: int,
        hash_size: int,
        groups: Sequence[CacheGroup],
        max_chunk: int,
        listeners: Sequence[BlockListener] = (),
    ) -> None:
        self.pool = BlockPool(num_blocks, listeners)
        self._listeners = listeners
        self._hash_size = hash_size
        self._groups = groups
        self.policies = make_policies(groups, self.pool)
        self._contiguous = next((policy for policy in self.policies if policy.needs_all_blocks), None)
        self._sizes = [policy.block_size for policy in self.policies]
        self.max_chunk = max_chunk
        self.defers_reads = any(policy.is_written_last for policy in self.policies)
        self.drops_blocks = any(group.spec.reach is not None for group in groups)

    def new_request(self, hasher: PrefixHasher | None) -> RequestCache:
        """An empty share of the cache."""
        count = len(self.policies)
        return RequestCache(hasher, [[] for _ in range(count)], [0] * count, [0] * count)

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of ``num_tokens`` tokens fits into an otherwise empty cache."""
        needed = sum(group.max_blocks(num_tokens, self.max_chunk) for group in self._groups)
        return needed <= self.pool.num_blocks - 1

    def find_prefix(self, cache: RequestCache, token_ids: TokenIds) -> tuple[int, list[list[int]]]:
        """The longest cached prefix in all groups; it excludes the last token, whose logits are needed.

        Returns:
            Its length in tokens, and per group the blocks.
        """
        if cache.hasher is None:
            return 0, [[] for _ in self.policies]
        hashes = self._hash_prefix(cache.hasher, token_ids, (len(token_ids) - 1) // self._hash_size)
        by_group = [self._of_blocks(hashes, policy) for policy in self.policies]
        limit = len(hashes) * self._hash_size
        while True:
            found = [
                policy.find_prefix(own, limit // policy.block_size)
                for policy, own in zip(self.policies, by_group, strict=True)
            ]
            lengths = [len(blocks) * policy.block_size for policy, blocks in zip(self.policies, found, strict=True)]
            limit = min(lengths, default=0)
            if all(length == limit for length in lengths):
                return limit, found

    def _of_blocks(self, hashes: list[bytes], policy: GroupPolicy) -> list[bytes]:
        """The hashes at the ends of a group's blocks."""
        ratio = policy.block_size // self._hash_size
        return hashes if ratio == 1 else hashes[ratio - 1 :: ratio]

    def _hash_prefix(self, hasher: PrefixHasher, token_ids: TokenIds, limit: int) -> list[bytes]:
        """The first ``limit`` hashes, or those up to some block after the first that is not cached.

        Hashing a prompt of 100,000 tokens takes milliseconds, so what cannot be found is hashed when it is published.
        """
        first = self._contiguous
        end = limit if first is None else min(limit, _NUM_FIRST_HASHES)
        while True:
            hashes = hasher.extend(token_ids, end * self._hash_size)[:limit]
            if end == limit or first is None:
                return hashes
            own = self._of_blocks(hashes[:end], first)
            if own and first.lookup(own[-1]) is None:
                return hashes
            end = min(limit, 2 * end)

    def adopt_prefix(self, cache: RequestCache, blocks: list[list[int]]) -> None:
        """Add a found prefix to a request's empty tables."""
        for group, prefix in enumerate(blocks):
            self.pool.share(prefix)
            cache.tables[group].extend(prefix)
            cache.num_dropped[group] = prefix.count(NULL_BLOCK)
            cache.num_published[group] = len(prefix)

    def num_blocks_wanted(self, cache: RequestCache, num_tokens: int) -> int:
        """Number of blocks needed to grow to ``num_tokens`` tokens."""
        return sum(
            max(0, -(-num_tokens // policy.block_size) - len(table))
            for policy, table in zip(self.policies, cache.tables, strict=True)
        )

    def grow(
        self, caches: Sequence[RequestCache], num_computed: Sequence[int], num_tokens: Sequence[int]
    ) -> list[BlockUpdate] | None:
        """Grow requests: free the blocks that no later query needs, then allocate room.

        Args:
            num_computed: per request, tokens in the cache, or fewer.
            num_tokens: per request, tokens to have room for.

        Returns:
            The additions to block tables; None, without any addition, if too few blocks are free for all requests.
        """
        if self.drops_blocks:
            for cache, position in zip(caches, num_computed, strict=True):
                self.drop_unseen(cache, position)
        sizes, wanted = self._sizes, 0
        short: list[tuple[int, int, list[int], int]] = []
        for cache, count in zip(caches, num_tokens, strict=True):
            for group, table in enumerate(cache.tables):
                missing = -(-count // sizes[group]) - len(table)
                if missing > 0:
                    short.append((group, cache.slot, table, missing))
                    wanted += missing
        if wanted > self.pool.num_free:
            return None
        blocks = self.pool.allocate(wanted)
        added, end = [], 0
        for group, slot, table, missing in short:
            start, end = end, end + missing
            new = blocks[start:end]
            added.append(BlockUpdate(group, slot, len(table), new))
            table.extend(new)
        return added

    def num_tokens_before_change(self, cache: RequestCache) -> int:
        """The number of computed tokens up to which the request's block tables do not change."""
        if len(self._sizes) == 1 and not self.drops_blocks:  # asked for each block of most models
            return len(cache.tables[0]) * self._sizes[0]
        limit = UNLIMITED
        for policy, table, num_dropped in zip(self.policies, cache.tables, cache.num_dropped, strict=True):
            limit = min(limit, len(table) * policy.block_size, policy.num_tokens_before_drop(num_dropped))
        return limit

    def drop_unseen(self, cache: RequestCache, num_computed: int) -> None:
        """Free the blocks that no query at position ``num_computed`` or later needs."""
        for group, policy in enumerate(self.policies):
            table, done = cache.tables[group], cache.num_dropped[group]
            dead = min(policy.num_dead_blocks(num_computed), len(table))
            if dead > done:
                # In this order: later blocks are more likely to be hit, so they should be reused last.
                self.pool.release(table[done:dead])
                table[done:dead] = [NULL_BLOCK] * (dead - done)
                cache.num_dropped[group] = dead

    def publish(self, cache: RequestCache, token_ids: TokenIds, num_computed: int, num_scheduled: int = 0) -> None:
        """Offer full blocks to the prefix index.

        Args:
            num_computed: tokens in the cache after all steps so far.
            num_scheduled: how many of them the step that is being made computes.
        """
        if cache.hasher is None:
            return
        hashes: list[bytes] = []
        for group, (policy, table) in enumerate(zip(self.policies, cache.tables, strict=True)):
            num_tokens = num_computed - num_scheduled if policy.is_written_last else num_computed
            first, end = cache.num_published[group], num_tokens // policy.block_size
            if end <= first:
                continue
            hashes = hashes or cache.hasher.extend(token_ids, num_computed)
            ratio, suffix = policy.block_size // self._hash_size, key_suffix(group)
            entered = [
                index
                for index in range(first, end)
                if table[index] != NULL_BLOCK
                and self.pool.publish(table[index], hashes[(index + 1) * ratio - 1] + suffix)
            ]
            if entered and self._listeners:
                self._report_stored(cache.hasher, group, token_ids, entered)
            cache.num_published[group] = end

    def num_blocks_lost(self, cache: RequestCache) -> int:
        """Number of blocks that no other request holds: the blocks that become free with this request."""
        return sum(self.pool.ref_count(block) == 1 for table in cache.tables for block in table)

    def free(self, cache: RequestCache) -> None:
        """Free all blocks, the last ones first, so that the end of a sequence is reused before its beginning."""
        for group, table in enumerate(cache.tables):
            self.pool.release(reversed(table))
            table.clear()
            cache.num_dropped[group] = cache.num_published[group] = 0

    def distrust(self, cache: RequestCache) -> None:
        """Remove a request's blocks from the prefix index, since their content is invalid."""
        self.pool.retract(block for table in cache.tables for block in table if block != NULL_BLOCK)

    def _report_stored(self, hasher: PrefixHasher, group: int, token_ids: TokenIds, entered: list[int]) -> None:
        """Report blocks by their indices in the block table, each run of consecutive ones as a whole."""
        policy = self.policies[group]
        size, ratio = policy.block_size, policy.block_size // self._hash_size
        hashes = self._of_blocks(hasher.hashes, policy)
        for _, run in groupby(enumerate(entered), lambda pair: pair[1] - pair[0]):
            indices = [index for _, index in run]
            first, end = indices[0], indices[-1] + 1
            blocks = StoredBlocks(
                group,
                size,
                hashes[first - 1] if first else None,
                hashes[first:end],
                token_ids[first * size : end * size],
                [hasher.keys_between(index * ratio, (index + 1) * ratio) for index in indices],
            )
            for listener in self._listeners:
                listener.stored(blocks)
