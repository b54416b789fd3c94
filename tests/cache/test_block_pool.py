"""The block pool against a naive model: a list of free blocks in order of reuse, and a dictionary of contents."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.cache import NULL_BLOCK, BlockPool, StoredBlocks, prefix_key

KEYS = [prefix_key(bytes([value]), group) for value in range(4) for group in range(2)]


class Removals:
    """A listener that keeps what was said to be gone."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.num_cleared = 0

    def stored(self, blocks: StoredBlocks) -> None:
        raise AssertionError("the pool knows no contents")

    def removed(self, hashes: Sequence[bytes], group: int) -> None:
        self.keys += [prefix_key(block_hash, group) for block_hash in hashes]

    def cleared(self) -> None:
        self.num_cleared += 1


class PoolMachine(RuleBasedStateMachine):
    """Every operation is mirrored on plain containers."""

    @initialize(num_blocks=st.integers(2, 8))
    def start(self, num_blocks: int) -> None:
        self.removals = Removals()
        self.pool = BlockPool(num_blocks, [self.removals])
        self.num_blocks = num_blocks
        self.free = list(range(1, num_blocks))
        self.held: Counter[int] = Counter()
        self.contents: dict[bytes, int] = {}

    def key_of(self, block: int) -> bytes | None:
        return next((key for key, cached in self.contents.items() if cached == block), None)

    def drop(self, block: int) -> None:
        """A block's content is gone, and the listener has been told so."""
        key = self.key_of(block)
        if key is not None:
            del self.contents[key]
            self.removals.keys.remove(key)

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        expected, self.free = self.free[:count], self.free[count:]
        assert self.pool.allocate(count) == expected
        for block in expected:
            self.held[block] = 1
            self.drop(block)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.held:
            return
        references = sorted(self.held.elements())
        blocks = data.draw(st.permutations(references))[: data.draw(st.integers(1, len(references)))]
        blocks.insert(data.draw(st.integers(0, len(blocks))), NULL_BLOCK)
        self.pool.release(blocks)
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.held[block] -= 1
            if self.held[block] == 0:
                del self.held[block]
                self.free.insert(0 if self.key_of(block) is None else len(self.free), block)

    @rule(key=st.sampled_from(KEYS))
    def hit(self, key: bytes) -> None:
        block = self.pool.lookup(key)
        assert block == self.contents.get(key)
        if block is not None:
            self.pool.share([NULL_BLOCK, block])
            self.held[block] += 1
            if block in self.free:
                self.free.remove(block)

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        if not self.held:
            return
        block = data.draw(st.sampled_from(sorted(self.held)))
        is_new = key not in self.contents and self.key_of(block) is None
        assert self.pool.publish(block, key) is is_new
        if is_new:
            self.contents[key] = block

    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(1, self.num_blocks - 1))
        self.pool.retract([block])
        self.drop(block)

    @rule()
    def clear_index(self) -> None:
        before = self.removals.num_cleared
        assert self.pool.clear_index() is (not self.held)
        assert self.removals.num_cleared == before + (not self.held)
        if not self.held:
            self.contents.clear()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_free + len(self.held) == self.num_blocks - 1
        assert self.pool.usage == pytest.approx(len(self.held) / (self.num_blocks - 1))
        assert [self.pool.ref_count(block) for block in range(self.num_blocks)] == [
            self.held[block] for block in range(self.num_blocks)
        ]
        assert not self.removals.keys, "something was said to be gone that is not"
        assert {key: self.pool.lookup(key) for key in KEYS} == {key: self.contents.get(key) for key in KEYS}

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.allocate(self.pool.num_free) == self.free


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=40)


def test_blocks_without_contents_are_reused_first_then_the_least_recently_freed() -> None:
    pool = BlockPool(6)
    first, second, third, plain = pool.allocate(4)
    for number, block in enumerate((first, second, third)):
        pool.publish(block, prefix_key(bytes([number]), 0))
    pool.release([second])
    pool.release([first, third])
    pool.release([plain])
    untouched = 5
    assert pool.allocate(5) == [plain, untouched, second, first, third]


def test_a_hit_saves_a_free_block_from_reuse() -> None:
    pool = BlockPool(3)
    old, new = pool.allocate(2)
    pool.publish(old, prefix_key(b"old", 0))
    pool.publish(new, prefix_key(b"new", 0))
    pool.release([old])
    pool.release([new])
    pool.share([old])
    assert pool.allocate(1) == [new]
    assert pool.lookup(prefix_key(b"old", 0)) == old
    assert pool.lookup(prefix_key(b"new", 0)) is None


def test_equal_contents_of_two_groups_are_two_entries() -> None:
    pool = BlockPool(3)
    one, other = pool.allocate(2)
    pool.publish(one, prefix_key(b"same", 0))
    pool.publish(other, prefix_key(b"same", 1))
    assert pool.lookup(prefix_key(b"same", 0)) == one
    assert pool.lookup(prefix_key(b"same", 1)) == other
