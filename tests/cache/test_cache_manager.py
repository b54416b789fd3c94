"""The cache manager over all kinds of groups, against a map of what each block was said to hold."""

from dataclasses import dataclass, field
from math import lcm

from block_mirror import BlockMirror, MirroredBlock
from cache_groups import STATE, cache_group, cache_groups
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from visible_keys import first_key

from octavo.cache import NULL_BLOCK, CacheManager, PrefixHasher, RequestCache, prefix_key
from octavo.records import BlockKey, CacheSpec, ChunkedLocal, KeySpan, as_token_ids

WINDOWS = st.integers(1, 9) | st.integers(-9, -1)
GROUPS = st.one_of(
    st.just((None,)),
    st.tuples(WINDOWS),
    st.tuples(st.none(), WINDOWS),
    st.tuples(st.none(), WINDOWS, WINDOWS),
    st.tuples(st.none(), st.none(), WINDOWS),
    st.tuples(st.just(STATE)),
    st.tuples(st.none(), WINDOWS, st.just(STATE)),
)
Content = tuple[int, tuple[int, ...], str]
"""Cache group, all tokens up to the block's end, salt."""


@dataclass
class Sequence:
    """A request as the test knows it."""

    cache: RequestCache
    tokens: list[int]
    salt: str
    num_computed: int = 0
    has_hasher: bool = True
    published: set[int] = field(default_factory=set)


class ManagerMachine(RuleBasedStateMachine):
    """Requests come, compute, publish and go in any order."""

    @initialize(
        kinds=GROUPS,
        ratios=st.lists(st.integers(1, 3), min_size=3, max_size=3),
        hash_size=st.integers(1, 3),
        num_blocks=st.integers(4, 40),
    )
    def start(
        self, kinds: tuple[CacheSpec | int | None, ...], ratios: list[int], hash_size: int, num_blocks: int
    ) -> None:
        self.hash_size = hash_size
        self.groups = [
            cache_group(kind, index=index, block_size=hash_size * ratio)
            for index, (kind, ratio) in enumerate(zip(kinds, ratios, strict=False))
        ]
        self.sizes = [group.block_size for group in self.groups]
        self.mirror = BlockMirror()
        self.manager = CacheManager(num_blocks, hash_size, self.groups, 8, [self.mirror])
        self.num_blocks = num_blocks
        self.alive: list[Sequence] = []
        self.contents: dict[int, Content] = {}

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4),
        repeat=st.integers(1, 16),
        salt=st.sampled_from(["", "tenant"]),
        is_findable=st.booleans() | st.just(True),
    )
    def new(self, tokens: list[int], repeat: int, salt: str, is_findable: bool) -> None:
        tokens = [*[0] * repeat, *tokens]
        hasher = (
            PrefixHasher(self.hash_size, [KeySpan.of_request(salt, "cache_salt")] if salt else [])
            if is_findable
            else None
        )
        sequence = Sequence(self.manager.new_request(hasher), tokens, salt, has_hasher=is_findable)
        found, blocks = self.manager.find_prefix(sequence.cache, as_token_ids(tokens))
        self._check_prefix(sequence, found, blocks)
        self.manager.adopt_prefix(sequence.cache, blocks)
        sequence.num_computed = found
        self.alive.append(sequence)
        event(f"found {'something' if found else 'nothing'}")

    def _check_prefix(self, sequence: Sequence, found: int, blocks: list[list[int]]) -> None:
        assert found < len(sequence.tokens)
        assert [len(prefix) * size for prefix, size in zip(blocks, self.sizes, strict=True)] == [found] * len(blocks)
        for group, prefix in enumerate(blocks):
            needed = self._first_needed(group, found)
            for index, block in enumerate(prefix):
                assert (block == NULL_BLOCK) == (index < needed)
                assert block == NULL_BLOCK or self.contents[block] == self._content(sequence, group, index)
        if sequence.has_hasher:
            assert found == self._longest_prefix(sequence)
        else:
            assert found == 0

    def _longest_prefix(self, sequence: Sequence) -> int:
        """By trying every length against what lies in the index."""
        available = set(self.contents.values())
        step = lcm(*self.sizes)
        for length in range((len(sequence.tokens) - 1) // step * step, 0, -step):
            if all(
                self._content(sequence, group, index) in available
                for group, size in enumerate(self.sizes)
                for index in range(self._first_needed(group, length), length // size)
            ):
                return length
        return 0

    def _content(self, sequence: Sequence, group: int, index: int) -> Content:
        return group, tuple(sequence.tokens[: (index + 1) * self.sizes[group]]), sequence.salt

    def _first_needed(self, group: int, num_computed: int) -> int:
        """First block that the query at position ``num_computed`` needs."""
        spec = self.groups[group].spec
        if isinstance(spec, ChunkedLocal):
            return first_key(num_computed, -spec.chunk) // self.sizes[group]
        return first_key(num_computed, spec.reach) // self.sizes[group]

    @rule(data=st.data(), count=st.integers(1, 8), publishes=st.booleans() | st.just(True))
    def compute(self, data: st.DataObject, count: int, publishes: bool) -> None:
        """A chunk, in the scheduler's order: give back, grow, publish."""
        if not self.alive:
            return
        sequence = data.draw(st.sampled_from(self.alive))
        if sequence.num_computed + count > len(sequence.tokens):
            sequence.tokens += [0] * (sequence.num_computed + count - len(sequence.tokens))
        end = sequence.num_computed + count
        before = [list(table) for table in sequence.cache.tables]
        self.manager.drop_unseen(sequence.cache, sequence.num_computed)
        wanted = self.manager.num_blocks_wanted(sequence.cache, end)
        free = self.manager.pool.num_free
        added = self.manager.grow([sequence.cache], [sequence.num_computed], [end])
        if added is None:
            assert wanted > free == self.manager.pool.num_free
            assert [len(table) for table in sequence.cache.tables] == [len(table) for table in before]
            return
        assert sum(len(new.block_ids) for new in added) == wanted
        for new in added:
            assert new.start == len(before[new.group])
            for block in new.block_ids:
                assert self.manager.pool.ref_count(block) == 1
                self.contents.pop(block, None)
        sequence.num_computed = end
        for group, table in enumerate(sequence.cache.tables):
            assert all(table[self._first_needed(group, end - count) :]), "a block that a query sees is missing"
        if publishes:
            self._publish(sequence, count)

    def _publish(self, sequence: Sequence, count: int) -> None:
        first = list(sequence.cache.num_published)
        computed = sequence.num_computed
        self.manager.publish(sequence.cache, as_token_ids(sequence.tokens), computed, count)
        if not sequence.has_hasher:
            return
        for group, table in enumerate(sequence.cache.tables):
            # States are offered a step later, since rows of the same step must not read them.
            end = computed - count if self.groups[group].spec == STATE else computed
            for index in range(first[group], end // self.sizes[group]):
                content = self._content(sequence, group, index)
                if table[index] and table[index] not in self.contents and content not in self.contents.values():
                    self.contents[table[index]] = content

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if not self.alive:
            return
        sequence = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        lost = self.manager.num_blocks_lost(sequence.cache)
        before = self.manager.pool.num_free
        self.manager.free(sequence.cache)
        assert self.manager.pool.num_free == before + lost

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if not self.alive:
            return
        sequence = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        held = {block for table in sequence.cache.tables for block in table} - {NULL_BLOCK}
        self.manager.distrust(sequence.cache)
        for block in held:
            self.contents.pop(block, None)
        self.manager.free(sequence.cache)

    @invariant()
    def listeners_know_the_index(self) -> None:
        if not hasattr(self, "manager"):
            return
        expected = {}
        for group, tokens, salt in self.contents.values():
            spans = [KeySpan.of_request(salt, "cache_salt")] if salt else []
            hasher, size = PrefixHasher(self.hash_size, spans), self.sizes[group]
            hashes = [None, *hasher.extend(as_token_ids(tokens), len(tokens))]
            first = (len(tokens) - size) // self.hash_size
            keys = hasher.keys_between(first, len(hashes) - 1)
            expected[group, hashes[-1]] = MirroredBlock(hashes[first], tokens[-size:], keys)
        assert self.mirror.blocks == expected

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "manager"):
            return
        pool = self.manager.pool
        tables = [table for sequence in self.alive for table in sequence.cache.tables]
        references = [block for table in tables for block in table if block != NULL_BLOCK]
        for block in range(1, self.num_blocks):
            assert pool.ref_count(block) == references.count(block)
        assert pool.num_free == self.num_blocks - 1 - len(set(references))

    @invariant()
    def shared_blocks_hold_the_same(self) -> None:
        """Whoever holds a block at some place of its table agrees with all others on what it holds."""
        holders: dict[int, Content] = {}
        for sequence in getattr(self, "alive", []):
            for group, table in enumerate(sequence.cache.tables):
                for index, block in enumerate(table):
                    content = self._content(sequence, group, index)
                    if block != NULL_BLOCK and (index + 1) * self.sizes[group] <= sequence.num_computed:
                        assert holders.setdefault(block, content) == content


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=120, stateful_step_count=30)


def test_a_window_returns_blocks_as_it_moves_on() -> None:
    manager = CacheManager(10, 2, cache_groups(3, block_size=2), max_chunk=8)
    cache = manager.new_request(None)
    manager.grow([cache], [0], [8])
    manager.drop_unseen(cache, 6)
    # The query at position 6 sees positions 4 to 6.
    assert [block == NULL_BLOCK for block in cache.tables[0]] == [True, True, False, False]
    assert manager.pool.num_free == 7


def test_a_request_fits_if_its_largest_moment_does() -> None:
    full = CacheManager(5, 2, cache_groups(None, block_size=2), max_chunk=8)
    assert full.fits(8)
    assert not full.fits(9)
    # Three tokens before the chunk's first query, four in it, and a block cut on either side.
    window = CacheManager(6, 2, cache_groups(4, block_size=2), max_chunk=4)
    assert window.fits(10**6)
    assert not CacheManager(5, 2, cache_groups(4, block_size=2), max_chunk=4).fits(10**6)


def test_blocks_are_reported_in_runs_with_parent_tokens_and_keys() -> None:
    mirror = BlockMirror()
    manager = CacheManager(30, 2, cache_groups(None, None, block_size=2), 16, [mirror])
    tokens = list(range(9))

    def publish(spans: list[KeySpan]) -> list[bytes]:
        cache = manager.new_request(PrefixHasher(2, spans))
        manager.grow([cache], [0], [9])
        manager.publish(cache, as_token_ids(tokens), 9)
        assert cache.hasher is not None
        return cache.hasher.hashes

    plain = publish([])
    assert [(report.group, report.parent_hash, report.hashes) for report in mirror.reports] == [
        (group, None, plain[:4]) for group in range(2)
    ]
    assert list(mirror.reports[0].token_ids) == tokens[:8]
    assert list(mirror.reports[0].extra_keys) == [()] * 4
    mirror.reports.clear()
    # The first two blocks are the plain prompt's, which are in the index already.
    keyed = publish([KeySpan(5, 6, "cat", "image")])
    assert [(report.parent_hash, report.hashes) for report in mirror.reports] == [(plain[1], keyed[2:])] * 2
    assert list(mirror.reports[0].extra_keys) == [(BlockKey("image", "cat", 1),), ()]


def test_a_gap_between_entered_blocks_splits_the_report() -> None:
    mirror = BlockMirror()
    manager = CacheManager(20, 1, cache_groups(None, block_size=1), 8, [mirror])
    cache = manager.new_request(PrefixHasher(1))
    manager.grow([cache], [0], [5])
    hashes = PrefixHasher(1).extend(as_token_ids([7] * 5), 5)
    other = manager.pool.allocate(1)
    manager.pool.publish(other[0], prefix_key(hashes[2], 0))
    manager.publish(cache, as_token_ids([7] * 5), 5)
    assert [report.hashes for report in mirror.reports] == [hashes[:2], hashes[3:]]
    assert [report.parent_hash for report in mirror.reports] == [None, hashes[2]]


def test_a_chunk_returns_its_blocks_when_it_ends() -> None:
    manager = CacheManager(10, 2, cache_groups(-6, block_size=2), max_chunk=8)
    cache = manager.new_request(None)
    freed = []
    for num_tokens in range(14):
        assert manager.grow([cache], [num_tokens], [num_tokens + 1]) is not None
        freed.append(cache.tables[0].count(NULL_BLOCK))
    assert freed == [0] * 6 + [3] * 6 + [6] * 2
    assert manager.fits(10**6)


def num_hashed(window: int | None, num_cached: int, num_tokens: int) -> int:
    """Blocks of one token of a prompt that a search hashes, of which so many are cached."""
    manager = CacheManager(num_tokens + 1, 1, cache_groups(window, block_size=1), 8)
    tokens = as_token_ids([7] * num_tokens)
    cache = manager.new_request(PrefixHasher(1))
    manager.grow([cache], [0], [num_cached])
    manager.publish(cache, tokens, num_cached)
    manager.free(cache)
    hasher = PrefixHasher(1)
    found, _ = manager.find_prefix(manager.new_request(hasher), tokens)
    assert found == (num_cached if window is None or num_cached >= window else 0)
    return len(hasher.hashes)


def test_a_search_hashes_little_beyond_what_is_cached() -> None:
    assert num_hashed(None, 0, 1000) == 64
    assert num_hashed(None, 63, 1000) == 64
    assert num_hashed(None, 64, 1000) == 128
    assert num_hashed(None, 300, 1000) == 512
    assert num_hashed(None, 999, 1000) == 999
    # A window is found from its end, wherever that is.
    assert num_hashed(5, 300, 1000) == 999
