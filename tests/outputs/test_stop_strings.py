import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.outputs.stop_strings import StopStringMatcher


def run(stop_strings, pieces, include=False):
    """Text let through, the stop string found, and how many pieces were taken."""
    matcher = StopStringMatcher(stop_strings, include)
    text = ""
    for count, piece in enumerate(pieces, 1):
        text += matcher.match_delta(piece)
        if matcher.matched is not None:
            return text, matcher.matched, count
    return text + matcher.flush(), None, len(pieces)


def by_definition(stop_strings, text, include):
    """Read character by character until a stop string is complete; the longest counts."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("abcd", max_size=4), max_size=12),
    st.booleans(),
)
def test_any_cut_finds_what_the_definition_finds(stop_strings, pieces, include):
    text, matched, count = run(stop_strings, pieces, include)
    assert (text, matched) == by_definition(stop_strings, "".join(pieces), include)
    if matched is not None:
        assert by_definition(stop_strings, "".join(pieces[: count - 1]), include)[1] is None


@given(
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=10),
)
def test_only_a_possible_beginning_is_held_back(stop_strings, pieces):
    matcher = StopStringMatcher(stop_strings)
    shown, seen = "", ""
    for piece in pieces:
        shown += matcher.match_delta(piece)
        seen += piece
        if matcher.matched is not None:
            return
        held = seen[len(shown) :]
        beginnings = [n for n in range(1, len(seen) + 1) if any(s.startswith(seen[-n:]) for s in stop_strings)]
        assert len(held) == max(beginnings, default=0)


@pytest.mark.parametrize(
    ("stop_strings", "pieces", "include", "expected"),
    [
        (["</s>"], ["a<", "/s", ">b"], False, ("a", "</s>", 3)),
        (["</s>"], ["a<", "/s", ">b"], True, ("a</s>", "</s>", 3)),
        (["abc", "b"], ["ab", "c"], False, ("a", "b", 1)),
        (["b", "ab"], ["xab"], False, ("x", "ab", 1)),
        (["aab"], ["aaa", "b"], False, ("a", "aab", 2)),
        (["\n\n"], ["one\n", "two"], False, ("one\ntwo", None, 2)),
    ],
)
def test_examples(stop_strings, pieces, include, expected):
    assert run(stop_strings, pieces, include) == expected
