"""Cache groups, and how long a sequence they let a cache hold."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import tiny_config

from octavo.cache import CacheManager
from octavo.planning.groups import longest_sequence, make_groups
from octavo.records import CacheGroup


@settings(max_examples=100)
@given(num_layers=st.integers(1, 30), data=st.data(), window=st.integers(1, 40))
def test_every_layer_is_in_one_group_of_its_kind_and_sizes_are_even(
    num_layers: int, data: st.DataObject, window: int
) -> None:
    sliding = data.draw(st.sets(st.integers(0, num_layers - 1)))
    config = tiny_config(num_layers=num_layers, sliding=tuple(sliding), window=window if sliding else None)
    groups = make_groups(config, max_model_len=32)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(num_layers))
    hides = window < 32
    for group in groups:
        assert group.layers
        assert list(group.layers) == sorted(group.layers)
        for layer in group.layers:
            assert group.window == (window if layer in sliding and hides else None)
    for kind in (None, window):
        sizes = [len(group.layers) for group in groups if group.window == kind]
        assert not sizes or max(sizes) - min(sizes) <= 1
    rarer = min(count for count in (len(sliding), num_layers - len(sliding)) if count)
    assert max(len(group.layers) for group in groups) == (rarer if hides else num_layers)


def test_local_and_global_layers_of_a_gemma_become_groups_of_the_rarer_kinds_size() -> None:
    sliding = tuple(layer for layer in range(18) if layer % 6 != 5)
    groups = make_groups(tiny_config(num_layers=18, sliding=sliding, window=8), max_model_len=64)
    assert [len(group.layers) for group in groups] == [3] * 6
    assert [group.window for group in groups] == [None] + [8] * 5


def test_a_model_of_sliding_layers_alone_is_one_group() -> None:
    config = tiny_config(sliding=(0, 1, 2), window=8)
    assert make_groups(config, max_model_len=64) == (CacheGroup((0, 1, 2), 8),)


WINDOWS = st.none() | st.integers(1, 30)


@settings(max_examples=300)
@given(
    windows=st.lists(WINDOWS, min_size=1, max_size=4),
    num_blocks=st.integers(1, 60),
    block_size=st.integers(1, 8),
    max_chunk=st.integers(1, 40),
)
@example(windows=[4, 4], num_blocks=7, block_size=2, max_chunk=4)
def test_the_longest_sequence_is_the_longest_that_the_cache_manager_takes(
    windows: list[int | None], num_blocks: int, block_size: int, max_chunk: int
) -> None:
    groups = tuple(CacheGroup((index,), window) for index, window in enumerate(windows))
    longest = longest_sequence(groups, num_blocks, block_size, max_chunk)
    manager = CacheManager(num_blocks + 1, block_size, groups, max_chunk)
    by_trying = max((length for length in range(1000) if manager.fits(length)), default=0)
    if longest >= 1000:
        assert by_trying == 999
        assert manager.fits(longest)
    else:
        assert longest == by_trying
