import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.values import parse_count, parse_float, parse_json_object, parse_pair


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("-1", -1),
        ("8k", 8000),
        ("8K", 8192),
        ("25.6k", 25600),
        ("0.5K", 512),
        ("2m", 2_000_000),
        ("2M", 2 << 20),
        ("1g", 10**9),
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("500MB", 500_000_000),
        ("500M", 500 << 20),
        ("1e9", 10**9),
        ("1.5e3", 1500),
        ("1T", 1 << 40),
    ],
)
def test_counts_with_suffixes(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "8x", "8kk", "1.5", "0.3K", "nan", "inf", "1e999", "0x10", "8 000", "--8"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_count(text)


@given(st.integers(-(10**15), 10**15))
def test_plain_counts_round_trip(value: int) -> None:
    assert parse_count(str(value)) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_count(text), int)
    except argparse.ArgumentTypeError as error:
        assert str(error)


def test_other_values() -> None:
    assert parse_float("0.5") == 0.5
    assert parse_json_object('{"a": [1]}') == {"a": [1]}
    assert parse_pair("a=b=c") == ("a", "b=c")


@pytest.mark.parametrize("text", ["[1]", "{", "3", "{'a': 1}"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="JSON"):
        parse_json_object(text)
