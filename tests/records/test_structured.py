"""What a request may ask for in structured output."""

from typing import Any

import msgspec
import pytest

from octavo import StructuredOutputsParams
from octavo.errors import InvalidRequestError
from octavo.records.structured import MAX_CHOICES, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH


def _deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({}, "got none"),
        ({"json_object": False}, "got none"),
        ({"json": {}, "regex": "a"}, "got json and regex"),
        ({"json": 3}, "must be a JSON object"),
        ({"json": {"a": "x" * MAX_SCHEMA_BYTES}}, "at most 65,536 bytes"),
        ({"json": "x" * (MAX_SCHEMA_BYTES + 1)}, "at most 65,536 bytes"),
        ({"json": _deep(MAX_SCHEMA_DEPTH + 2)}, "nested at most 64"),
        ({"json": _deep(100_000)}, "nested at most 64"),
        ({"json": {"a": object()}}, "plain JSON"),
        ({"regex": ""}, "must not be empty"),
        ({"regex": "a" * 10_000}, "at most 8,192"),
        ({"regex": "\ud800"}, "surrogates"),
        ({"choice": []}, "at least one"),
        ({"choice": ["a", 1]}, "list of strings"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "at most 4,096 strings"),
        ({"choice": ["a" * (1 << 19)]}, "at most 262,144"),
        ({"grammar": "x" * (1 << 17)}, "at most 65,536"),
        ({"regex": "a", "backend": "outlines"}, "backend must be one of"),
        ({"regex": "a", "start_after": [-1]}, "token ids"),
        ({"regex": "a", "start_after": [1] * 100}, "at most 64"),
        ({"regex": "a", "start_after_tail": [1] * 100}, "start_after_tail takes at most 64"),
    ],
)
def test_refusals_say_why(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidRequestError, match=what) as refusal:
        StructuredOutputsParams(**fields)
    assert refusal.value.param == "structured_outputs"


def test_kind_is_the_field_that_is_given() -> None:
    assert StructuredOutputsParams(json={}).kind == "json"
    assert StructuredOutputsParams(json_object=True).kind == "json_object"
    assert StructuredOutputsParams(choice=["a"], json_object=False).kind == "choice"


def test_survives_the_way_to_the_engine() -> None:
    params = StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=True, start_after=[3, 4])
    encoded = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(encoded, type=StructuredOutputsParams) == params


def test_numbers_that_no_record_can_hold() -> None:
    with pytest.raises(InvalidRequestError, match="plain JSON"):
        StructuredOutputsParams(json={"const": 1 << 64})
    StructuredOutputsParams(json={"const": (1 << 64) - 1})
