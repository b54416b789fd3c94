"""JSON and Python literals read as they come."""

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.tools.json_text import pass_decoded_string, pass_value, read_string
from octavo.outputs.parsers.tools.python_text import pass_literal
from octavo.outputs.parsers.tools.reader import AnswerReader, MalformedCallError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
RANDOM_TEXT = st.text("{}[]\",:\\u0041-+.eE5tfnralse'x \n", max_size=12)


def read(generator, text, size):
    """What is passed on of a text that comes in pieces of this size, and whether it is well-formed."""
    reader = AnswerReader()
    pieces = []
    steps = generator(reader, pieces.append)
    try:
        for start in range(0, len(text), size):
            next(steps)
            reader.append_text(text[start : start + size])
        next(steps)
        reader.end_text()
        next(steps)
    except StopIteration:
        return "".join(pieces), True
    except MalformedCallError:
        return "".join(pieces), False
    raise AssertionError("a reader waits for more at the end")


@given(VALUES, st.integers(1, 9), st.booleans())
@settings(max_examples=60)
def test_json_is_passed_on_as_it_is(value, size, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii)
    passed, is_whole = read(pass_value, text + " ", size)
    assert is_whole
    assert passed == text


@given(RANDOM_TEXT, st.integers(1, 5))
@settings(max_examples=200)
def test_what_is_taken_for_json_is_json(text, size):
    passed, is_whole = read(pass_value, text, size)
    if is_whole:
        json.loads(passed)
    else:
        with pytest.raises(ValueError):
            json.loads(text, parse_constant=lambda _: 1 / 0)
    # In strings, what stands bare is escaped; there is nothing else that changes.
    assert text.startswith(passed) or "\\n" in passed


@given(st.text(max_size=12), st.integers(1, 7), st.booleans())
@settings(max_examples=60)
def test_strings_are_decoded(text, size, is_ascii):
    decoded, is_whole = read(pass_decoded_string, json.dumps(text, ensure_ascii=is_ascii), size)
    assert is_whole
    assert decoded == text


def test_halves_of_pairs_are_replaced():
    assert read(pass_decoded_string, '"a\\ud83d\\ude00\\ud83dz\\ude00"', 1)[0] == "a😀\ufffdz\ufffd"
    assert not read(lambda reader, give: read_string(reader, 99), '"\\ud83d"', 1)[1]


@given(VALUES, st.integers(1, 9))
@settings(max_examples=60)
def test_python_literals_become_json(value, size):
    passed, is_whole = read(pass_literal, repr(value) + " ", size)
    assert is_whole
    assert json.loads(passed) == value


@given(st.text("'\"\\nxuN0{}rab7 \n", max_size=10), st.sampled_from(["'", '"', "'''", '"""']), st.integers(1, 4))
@settings(max_examples=200)
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_strings_mean_what_they_mean_in_python(body, quote, size):
    text = f"{quote}{body}{quote}"
    try:
        expected = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return
    passed, is_whole = read(pass_literal, text, size)
    assert is_whole
    assert json.loads(passed) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1, 2,)", [1, 2]),
        ("{'a': True, 2: None,}", {"a": True, "2": None}),
        ("+5", 5),
        ("0x10", 16),
        ("1_000", 1000),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("'a' \"b\"", "ab"),
    ],
)
def test_spellings_of_python(text, value):
    passed, is_whole = read(pass_literal, text + " ", 1)
    assert is_whole
    assert json.loads(passed) == value


@pytest.mark.parametrize("text", ["x", "{1}", "[1 2]", "-True", "f'x'", "[", "{'a' 1}", "nan", "9" * 2000, ""])
def test_what_is_no_literal_is_refused(text):
    assert not read(pass_literal, text, 1)[1]
