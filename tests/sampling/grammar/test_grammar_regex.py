"""Regexes are read as Python reads them, or refused in words."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.sampling.grammar.regex import escape, read_regex

ATOMS = st.sampled_from(
    ["a", "b", "-", ".", r"\.", r"\d", r"\w", "[ab]", "[^a]", r"[\d-]", "[a-c]", r"\-", "é", " ", "{"]
)
COUNTS = st.sampled_from(["", "*", "+", "?", "{2}", "{,2}", "{1,3}", "{1,}", "+?", "*?"])
TEXTS = st.text("ab1-c .{é\n", max_size=6)


def _branch(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=3).map("".join)


ITEMS = st.recursive(
    st.builds(str.__add__, ATOMS, COUNTS),
    lambda inner: st.builds(
        lambda mark, branches, count: f"({mark}{'|'.join(branches)}){count}",
        st.sampled_from(["", "?:", "?P<x>"]),
        st.lists(_branch(inner), min_size=1, max_size=2),
        COUNTS,
    ),
    max_leaves=6,
)
ENDS = st.sampled_from(["", "$"])
BRANCHES = st.tuples(st.sampled_from(["", "^"]), _branch(ITEMS), ENDS).map("".join)
REGEXES = st.lists(BRANCHES, min_size=1, max_size=3).map("|".join)


def _compiled(regex: str) -> re.Pattern[str] | None:
    try:
        return re.compile(regex, re.ASCII)
    except re.error:  # a group's name twice
        return None


def _for_python(regex: str) -> str:
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", regex)


@given(REGEXES, TEXTS)
def test_means_what_it_means_to_python(regex: str, text: str) -> None:
    original = _compiled(regex)
    if original is None or ("$" in regex and text.endswith("\n")):  # Python's $ also matches before a last line break.
        return
    whole = _for_python(read_regex(regex, "regex").text)
    part = _for_python(read_regex(regex, "regex", matches_part=True).text)
    assert bool(re.fullmatch(whole, text)) == bool(original.fullmatch(text))
    assert bool(re.fullmatch(part, text)) == bool(original.search(text))


@given(st.text(r"ab(){}[]|\^$?*+.,:<>!=-1iPpxuwdb0", max_size=30) | st.text(max_size=30))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        read_regex(text, "regex", matches_part=True)
    except InvalidRequestError as error:
        assert str(error).startswith("regex: the regex ") and str(error).endswith(".")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10))
def test_escaped_text_is_itself(text: str) -> None:
    assert re.fullmatch(_for_python(escape(text)), text)


@pytest.mark.parametrize(
    ("regex", "what"),
    [
        ("(?=a)b", "lookahead"),
        ("(?<!a)b", "lookbehind"),
        (r"(a)\1", r"back-reference '\1'"),
        (r"\bfoo", "word boundaries"),
        ("a++", "possessive"),
        ("(?>a)", "atomic"),
        ("(?m)a", "flags 'm'"),
        ("a^b", "uses ^ or $"),
        ("(a|^b)+c", "with ^ or $ in it"),
        ("+a", "nothing to repeat"),
        ("a**", "repeats a repetition"),
        ("a{3,1}", "wrong way round"),
        ("(a", "without ')'"),
        ("a)", "without '('"),
        ("[a", "without ']'"),
        ("[]", "empty class"),
        ("[z-a]", "no range"),
        ("[[:alpha:]]", "POSIX"),
        ("a\\", "unfinished"),
        ("a\0", "NUL"),
        (r"\ud800", "names no character"),
        (r"\x{110000}", "names no character"),
        ("a{1,100000}", "repeats 100000 times"),
        ("((a{1,100}){1,100}){1,100}", "stands for more than"),
        ("(" * 3000 + "a" + ")" * 3000, "groups within each other"),
    ],
)
def test_refusals_say_why(regex: str, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(what)):
        read_regex(regex, "regex")


@pytest.mark.parametrize("regex", [r"\p{Lu}+", "(?i)abc", "a(?i:b)", r"[\p{L}-]"])
def test_notes_what_only_guidance_knows(regex: str) -> None:
    assert read_regex(regex, "regex").guidance_only is not None


@pytest.mark.parametrize(
    ("regex", "is_so"),
    [
        ('a"b', True),
        (r"a\\b", True),
        (r"\n", True),
        ('["\n]', True),
        ('["a]', False),
        ('[^"]', False),
        ("[ -~]", False),
    ],
)
def test_notes_characters_that_json_escapes(regex: str, is_so: bool) -> None:
    assert read_regex(regex, "regex").names_escaped is is_so


def test_surrogate_pairs_are_one_character() -> None:
    assert read_regex(r"\ud83d\ude00", "regex").text == "😀"


@pytest.mark.parametrize("part", ["(", "a|", "[", "\\d", "(a|b)*", "a{1", "(?:", "[a-z]{2}", "^|$", "((a*)*)*"])
def test_long_ones_are_read_in_a_moment(part: str) -> None:
    """Were the work to grow faster than the length, this would take minutes."""
    with contextlib.suppress(InvalidRequestError):
        read_regex(part * (8000 // len(part)), "regex", matches_part=True)
