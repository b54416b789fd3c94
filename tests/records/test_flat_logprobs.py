"""The flat container of log-probabilities reads as the list of dictionaries that it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.records import FlatLogprobs, Logprob

ENTRIES = st.builds(Logprob, st.floats(-50, 0), st.none() | st.integers(1, 9), st.none() | st.text(max_size=3))
POSITIONS = st.lists(st.dictionaries(st.integers(0, 99), ENTRIES, max_size=4), max_size=8)


@given(POSITIONS, st.slices(8))
def test_flat_reads_as_the_list(positions: list[dict[int, Logprob]], part: slice) -> None:
    flat = FlatLogprobs.of(positions)
    assert len(flat) == len(positions)
    assert list(flat) == positions
    assert [flat[place] for place in range(-len(positions), 0)] == positions
    assert list(flat[part]) == positions[part]
    assert flat[part] == FlatLogprobs.of(positions[part])
    assert len(flat.token_ids) == len(flat.logprobs) == len(flat.ranks) == sum(map(len, positions))


def test_the_position_of_a_first_token_is_empty_and_nothing_can_be_changed() -> None:
    flat = FlatLogprobs.of([None, {7: Logprob(-1.0, 1, "a")}])
    flat.append_fast([3, 4], [-0.5, -2.0], [1, 2], ["x", None])
    assert list(flat) == [{}, {7: Logprob(-1.0, 1, "a")}, {3: Logprob(-0.5, 1, "x"), 4: Logprob(-2.0, 2, None)}]
    for change in (
        lambda: flat.insert(0, {}),
        flat.pop,
        lambda: flat.__setitem__(0, {}),
    ):
        with pytest.raises(TypeError, match="FlatLogprobs"):
            change()
    with pytest.raises(IndexError):
        flat[3]
