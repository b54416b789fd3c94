"""Cache groups, and how long a sequence they let a cache hold."""

from cache_groups import FULL, STATE, cache_groups, chunked, sliding
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.cache import CacheManager
from octavo.planning.groups import longest_sequence, make_groups
from octavo.records import CacheGroup, CacheSpec, Full, Latent, State, StateTensor


def specs_of(*specs: CacheSpec) -> dict[str, CacheSpec]:
    return {f"layer.{index}": spec for index, spec in enumerate(specs)}


def groups_of(*specs: CacheSpec, num_places: int = 1, interval: int | None = 512) -> tuple[list[CacheGroup], int]:
    groups, num_bytes = make_groups(specs_of(*specs), 16, 64_000, num_places, interval)
    return list(groups), num_bytes


KINDS = [FULL, sliding(7), sliding(40), chunked(9), chunked(50), Latent(3, "float32"), Full(2, 5, "bfloat16"), STATE]
BIG_STATE = State((StateTensor((3, 70), "float32"), StateTensor((5,), "bfloat16")))


@settings(max_examples=200)
@given(
    specs=st.lists(st.sampled_from([*KINDS, BIG_STATE]), min_size=1, max_size=30),
    hash_size=st.sampled_from([1, 16]),
    max_model_len=st.sampled_from([32, 64_000]),
    num_places=st.integers(1, 3),
    interval=st.none() | st.integers(1, 600),
)
def test_every_layer_is_in_one_group_of_its_kind_and_blocks_have_room(
    specs: list[CacheSpec], hash_size: int, max_model_len: int, num_places: int, interval: int | None
) -> None:
    named = specs_of(*specs)
    groups, num_bytes = make_groups(named, hash_size, max_model_len, num_places, interval)
    assert sorted(name for group in groups for name in group.layers) == sorted(named)
    for group in groups:
        spans_all = max_model_len == 32 and group.spec == FULL
        for name in group.layers:
            assert named[name] == group.spec or (spans_all and named[name] in (sliding(40), chunked(50)))
        assert group.block_size % hash_size == 0
        assert group.block_bytes(num_places) <= num_bytes
        if isinstance(group.spec, Full):
            # Kernels address blocks in units of a head's keys.
            assert num_bytes % (group.block_size * group.spec.run_bytes) == 0
    for spec in {group.spec for group in groups}:
        sizes = [len(group.layers) for group in groups if group.spec == spec]
        assert max(sizes) - min(sizes) <= 1
    counts = [sum(len(group.layers) for group in groups if group.spec == spec) for spec in {g.spec for g in groups}]
    assert max(len(group.layers) for group in groups) == min(counts)


def test_local_and_global_layers_of_a_gemma_become_groups_of_the_rarer_kinds_size() -> None:
    groups, num_bytes = groups_of(*(FULL if layer % 6 == 5 else sliding(8) for layer in range(18)))
    assert [len(group.layers) for group in groups] == [3] * 6
    assert [group.window for group in groups] == [None] + [8] * 5
    assert {group.block_size for group in groups} == {16}
    assert num_bytes == 3 * FULL.block_bytes(16, 1)


def test_layers_that_share_an_indexer_waste_little() -> None:
    """Hunyuan 4: latent vectors in 34 layers, an indexer in 10 of them."""
    latent, indexer = Latent(576, "bfloat16"), Latent(128, "bfloat16")
    groups, num_bytes = groups_of(*([latent] * 34 + [indexer] * 10))
    assert [len(group.layers) for group in groups] == [9, 9, 8, 8, 10]
    assert [group.block_size for group in groups] == [16, 16, 16, 16, 64]
    token_bytes = sum(num_bytes / group.block_size for group in groups)
    assert token_bytes < 1.07 * (34 * 576 + 10 * 128) * 2


def test_blocks_of_attention_are_as_large_as_a_state() -> None:
    groups, num_bytes = groups_of(FULL, BIG_STATE, num_places=2)
    attention, state = groups
    assert attention.block_size * FULL.block_bytes(1, 1) == num_bytes >= BIG_STATE.block_bytes(0, 2)
    assert num_bytes - BIG_STATE.block_bytes(0, 2) < FULL.block_bytes(16, 1)
    assert state.block_size % attention.block_size == 0


def test_without_prefix_caching_a_request_has_one_block_of_states() -> None:
    (group,), _ = groups_of(STATE, interval=None)
    assert group.block_size >= 64_000
    (group,), _ = groups_of(STATE)
    assert group.block_size < 64_000


REACHES = st.none() | st.integers(1, 30) | st.integers(-30, -1) | st.just(STATE)


@settings(max_examples=300)
@given(
    kinds=st.lists(REACHES, min_size=1, max_size=4),
    num_blocks=st.integers(1, 60),
    block_size=st.integers(1, 8),
    max_chunk=st.integers(1, 40),
)
@example(kinds=[4, 4], num_blocks=7, block_size=2, max_chunk=4)
def test_the_longest_sequence_is_the_longest_that_the_cache_manager_takes(
    kinds: list[CacheSpec | int | None], num_blocks: int, block_size: int, max_chunk: int
) -> None:
    groups = cache_groups(*kinds, block_size=block_size)
    longest = longest_sequence(groups, num_blocks, max_chunk)
    manager = CacheManager(num_blocks + 1, block_size, groups, max_chunk)
    by_trying = max((length for length in range(1000) if manager.fits(length)), default=0)
    if longest >= 1000:
        assert by_trying == 999
        assert manager.fits(longest)
    else:
        assert longest == by_trying
