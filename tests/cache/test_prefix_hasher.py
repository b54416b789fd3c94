"""Prefix hashes: equal exactly when the tokens before, the block's tokens and the extra keys are equal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache import PrefixHasher

TOKENS = st.lists(st.integers(0, 2), max_size=12)
KEYS = st.lists(st.sampled_from(["", "a", "ab", "b"]), max_size=2)


@settings(max_examples=150)
@given(first=TOKENS, second=TOKENS, first_keys=KEYS, second_keys=KEYS, size=st.integers(1, 4))
def test_hashes_are_equal_exactly_for_equal_prefixes(
    first: list[int], second: list[int], first_keys: list[str], second_keys: list[str], size: int
) -> None:
    hashes = PrefixHasher(size, first_keys).extend(first, len(first))
    others = PrefixHasher(size, second_keys).extend(second, len(second))
    assert len(hashes) == len(first) // size
    for index, (one, other) in enumerate(zip(hashes, others, strict=False)):
        end = (index + 1) * size
        assert (one == other) == (first[:end] == second[:end] and first_keys == second_keys)


@settings(max_examples=60)
@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 12)), size=st.integers(1, 4))
def test_hashing_piece_by_piece_gives_what_hashing_at_once_gives(tokens: list[int], cuts: list[int], size: int) -> None:
    hasher = PrefixHasher(size)
    for cut in sorted(cuts):
        hasher.extend(tokens, min(cut, len(tokens)))
    assert hasher.extend(tokens, len(tokens)) == PrefixHasher(size).extend(tokens, len(tokens))


def test_a_lone_surrogate_and_the_largest_token_id_are_hashed() -> None:
    assert len(PrefixHasher(1, ["\ud800"]).extend([2**31 - 1], 1)) == 1
