"""Nothing but well-formed, shallow JSON comes in, whatever the bytes."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api import json_body
from octavo.api.json_body import MAX_CONTAINERS, MAX_DEPTH, decode_json
from octavo.errors import InvalidRequestError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda children: st.lists(children) | st.dictionaries(TEXT, children),
)


@given(VALUES, st.booleans())
def test_json_comes_through_unchanged(value: object, is_ascii: bool) -> None:
    assert decode_json(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


@given(st.binary() | st.text('[]{}",:0123456789.eE+-\\u' + string.ascii_letters).map(str.encode))
def test_anything_else_is_rejected_with_an_error(body: bytes) -> None:
    try:
        value = decode_json(body)
    except InvalidRequestError as error:
        assert str(error).endswith(".")
    else:
        json.dumps(value, allow_nan=False).encode()


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_counted_exactly(opening: bytes, closing: bytes) -> None:
    decode_json(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH)
    with pytest.raises(InvalidRequestError, match="nested"):
        decode_json(opening * (MAX_DEPTH + 1) + b"1" + closing * (MAX_DEPTH + 1))


def test_many_brackets_are_not_depth() -> None:
    decode_json(b"[" + b",".join([b"[1,2]"] * 1000) + b"]")
    decode_json(json.dumps("[" * 1000).encode())


@pytest.mark.parametrize("item", [b"[]", b"{}", b'{"[":1}', b'["\\"",1]'])
def test_lists_and_objects_are_counted_exactly(item: bytes) -> None:
    def body(num_items: int) -> bytes:
        return b"[" + b",".join([item] * num_items) + b"]"

    decode_json(body(MAX_CONTAINERS - 1))
    with pytest.raises(InvalidRequestError, match="lists and objects"):
        decode_json(body(MAX_CONTAINERS))


@pytest.mark.parametrize("text", ["[" * 2 * MAX_CONTAINERS, '\\"[' * 2 * MAX_CONTAINERS, '"{' * 2 * MAX_CONTAINERS])
def test_brackets_in_strings_are_text(text: str) -> None:
    assert decode_json(json.dumps([text, text]).encode()) == [text, text]


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"', b"]"])
def test_strings_without_an_end_are_looked_at_once(end: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read as JSON"):
        decode_json(b'["' + b'\\"[' * (1 << 20) + end)


@given(st.text('[{"\\,', max_size=30).map(str.encode), st.integers(1, 3000), st.integers(0, 5000))
def test_brackets_are_counted_part_by_part(some: bytes, num_times: int, limit: int) -> None:
    """The same as if all strings were taken out of the body at once."""
    body = some * num_times
    outside = json_body._STRING.sub(b"", body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "MAX_CONTAINERS", limit)
        found = json_body._has_too_many_containers(body)
    assert found == (outside.count(b"[") + outside.count(b"{") > limit)
