"""Schemas are written in one form, and what a backend does not follow is noted by name."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.records.structured import MAX_SCHEMA_DEPTH, check_nesting
from octavo.sampling.grammar.schema import _ASSERTIONS, SchemaReader

INTEGER = {"type": "integer"}
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean"])
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from(["", "a", "^a", "(", "#", "#/$defs/a", "date"])
    | TYPES
)
ANY_SCHEMA = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*sorted(_ASSERTIONS), "$defs", "a", "title"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=300)
@given(ANY_SCHEMA)
def test_any_json_is_read_or_refused_in_words(source: Any) -> None:
    try:
        check_nesting("json", source)
        reader = SchemaReader(source, "json")
    except InvalidRequestError as error:
        assert str(error).endswith(".") and str(error).startswith("json")
    else:
        assert isinstance(reader.schema, dict)
        assert set(reader.unsupported) <= {"xgrammar", "guidance"}


@pytest.mark.parametrize(
    ("schema", "feature", "backends"),
    [
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'", ["xgrammar", "guidance"]),
        ({"not": INTEGER}, "'not'", ["xgrammar", "guidance"]),
        ({"if": INTEGER, "then": {"minimum": 3}}, "'if'", ["xgrammar", "guidance"]),
        ({"type": "array", "contains": INTEGER}, "'contains'", ["xgrammar", "guidance"]),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'", ["xgrammar", "guidance"]),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "'not'", ["xgrammar", "guidance"]),
        ({"$defs": {"x": {"not": {}}}, "items": {"$ref": "#/$defs/x"}}, "'not'", ["xgrammar", "guidance"]),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "'allOf'", ["xgrammar"]),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "'anyOf' beside 'type'", ["xgrammar"]),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "'oneOf'", ["xgrammar"]),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf'", ["xgrammar"]),
        ({"minLength": 3}, "'minLength' without 'type'", ["xgrammar"]),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "'maxLength' beside 'pattern'", ["xgrammar"]),
        ({"type": "object", "required": ["z"]}, "'required'", ["xgrammar"]),
        ({"type": "string", "format": "uri-reference"}, "format 'uri-reference'", ["guidance"]),
        ({"type": "object", "properties": {"a": {}}, "maxProperties": 3}, "'maxProperties'", ["guidance"]),
    ],
)
def test_unsupported_features_are_named(schema: dict[str, Any], feature: str, backends: list[str]) -> None:
    reader = SchemaReader(schema, "json")
    assert sorted(reader.unsupported) == sorted(backends)
    assert all(feature in named for named in reader.unsupported.values())


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (False, "allows no answer"),
        ({"type": "foo"}, "unknown type 'foo'"),
        ({"$ref": "http://169.254.169.254/x"}, "only references within the schema"),
        ({"$ref": "file:///etc/passwd"}, "only references within the schema"),
        ({"$ref": "#/$defs/x"}, "which is not there"),
        ({"$ref": "#"}, "round in a circle"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "round in a circle"),
        ({"enum": []}, "without a value"),
        ({"type": "string", "enum": [1]}, "without a value"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "'minLength' above its 'maxLength'"),
        ({"type": "string", "minLength": 10**30}, "'minLength' above"),
        ({"type": "string", "pattern": "(?=a)"}, "lookahead"),
        ({"type": "object", "propertyNames": {"pattern": None}}, "'pattern' that is no string"),
        ({"type": "object", "propertyNames": {"pattern": []}}, "'pattern' that is no string"),
        ({"type": "object", "patternProperties": {"a{1,99999}": {}}}, "99999 times"),
        ({"properties": [1]}, "'properties' without an object"),
        ({"anyOf": []}, "'anyOf' without a list"),
        ({"items": 3}, "stands for a schema"),
    ],
)
def test_refusals_say_why(schema: Any, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=what):
        SchemaReader(schema, "json")


def test_annotations_and_unknown_keywords_are_left_out() -> None:
    source = {"title": "T", "description": "d", "x-guidance": {"lenient": True}, "foo": 1, "default": 3, **INTEGER}
    assert SchemaReader(source, "json").schema == INTEGER


def test_objects_that_name_properties_have_no_others() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}
    assert SchemaReader(schema, "json").schema == {
        "type": "object",
        "properties": {"a": {"type": "object"}},
        "additionalProperties": False,
    }
    closed = SchemaReader(schema, "json", closes_all=True).schema
    assert closed["properties"]["a"] == {"type": "object", "additionalProperties": False}


def test_parts_that_hold_together_are_not_closed() -> None:
    """The properties of one part would be unknown to the other."""
    part = {"type": "object", "properties": {"a": INTEGER}}
    schema = SchemaReader({"allOf": [part, {"properties": {"b": INTEGER}}]}, "json").schema
    assert all("additionalProperties" not in one for one in schema["allOf"])


def test_long_chains_of_references_need_no_deep_stack() -> None:
    defs: dict[str, Any] = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(3000)}
    schema = SchemaReader({"$defs": {**defs, "a3000": INTEGER}, "$ref": "#/$defs/a0"}, "json").schema
    assert len(schema["$defs"]) == 3001


def test_what_references_multiply_is_bounded() -> None:
    deep: dict[str, Any] = INTEGER
    for level in range(MAX_SCHEMA_DEPTH // 2):
        wide = {f"p{level}_{i}": {"type": "null"} for i in range(200)}
        deep = {"type": "object", "properties": {"a": deep, **wide}}
    pointers = [{"$ref": "#" + "/properties/a" * level} for level in range(MAX_SCHEMA_DEPTH // 2)]
    with pytest.raises(InvalidRequestError, match="parts"):
        SchemaReader({**deep, "properties": {**deep["properties"], "z": {"anyOf": pointers}}}, "json")


class CountingReader(SchemaReader):
    num_targets = 0

    def _target(self, reference: Any) -> Any:
        self.num_targets += 1
        return super()._target(reference)


def test_references_to_the_same_parts_cost_no_more_for_being_many() -> None:
    chain: dict[str, Any] = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(2000)}
    reader = CountingReader({"$defs": {**chain, "d2000": {"type": "null"}}, "$ref": "#/$defs/d0"}, "json")
    assert reader.num_targets < 10 * len(chain)
    names = [f"k{index}" for index in range(1000)]
    large = {"type": "object", "required": names, "properties": {name: {"const": 1} for name in names}}
    with pytest.raises(InvalidRequestError, match="its references followed"):
        SchemaReader({"$defs": {"x": large}, "oneOf": [{"$ref": "#/$defs/x"}] * 1000}, "json")
