import json

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from octavo.errors import InvalidRequestError
from octavo.outputs.parsers.base import ContentText, Tool, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.tools.forced import forced_parser, forced_schema
from tests.outputs.parsers.cuts import check_cuts, places
from tests.outputs.parsers.tools.rendering import argument_sets, call_lists
from tests.outputs.parsers.tools.test_formats import calls_of

CITY = Tool(
    "weather",
    {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/place"}, "$ref": {"type": "integer"}},
        "required": ["place"],
        "$defs": {"place": {"type": "string", "minLength": 2}},
    },
)
# The same name for another thing.
STREET = Tool(
    "route",
    {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/place"}, "mode": {"enum": ["#/$defs/place"]}},
        "$defs": {"place": {"type": "object", "properties": {"via": {"$ref": "#/$defs/place"}}, "maxProperties": 1}},
    },
)
TREE = Tool("tree", {"type": "object", "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}}})
BARE = Tool("now")


@settings(max_examples=30)
@given(calls=call_lists(), cuts=places())
@pytest.mark.parametrize("key", ["parameters", "arguments"])
def test_required_calls_come_back(key, calls, cuts):
    text = json.dumps([{"name": name, key: arguments} for name, arguments in calls])
    parts = check_cuts(lambda: forced_parser(None), text, cuts)
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(parts)] == calls
    assert not any(isinstance(part, ContentText) for part in parts)


@settings(max_examples=30)
@given(arguments=argument_sets(), cuts=places())
def test_the_named_function_gets_what_was_written(arguments, cuts):
    text = json.dumps(arguments, indent=1)
    parts = check_cuts(lambda: forced_parser("f"), f"\n{text}\n", cuts)
    assert parts == [ToolCallBegin(0, "f"), ToolCallArguments(0, text)]


@settings(max_examples=20)
@given(arguments=argument_sets(), cuts=places())
def test_arguments_that_break_off_stay_broken(arguments, cuts):
    text = json.dumps({"last": arguments})[:-1]
    parts = check_cuts(lambda: forced_parser("f"), text, cuts)
    assert parts == [ToolCallBegin(0, "f"), ToolCallArguments(0, text)]


def test_an_answer_that_is_no_call_is_content():
    assert check_cuts(lambda: forced_parser(None), '[{"x": 1}] or so', [2]) == [ContentText('[{"x": 1}] or so')]
    assert check_cuts(lambda: forced_parser("f"), "I cannot {do} that", [2]) == [ContentText("I cannot {do} that")]


@pytest.mark.parametrize(
    ("answer", "is_valid"),
    [
        ([{"name": "weather", "parameters": {"place": "Oslo"}}], True),
        ([{"name": "weather", "parameters": {"place": "O"}}], False),
        ([{"name": "weather", "parameters": {}}], False),
        ([{"name": "weather", "parameters": {"place": "Oslo", "$ref": 1}}], True),
        ([{"name": "weather", "parameters": {"place": "Oslo", "$ref": "1"}}], False),
        ([{"name": "route", "parameters": {"to": {"via": {"via": {}}}}}], True),
        ([{"name": "route", "parameters": {"to": "Oslo"}}], False),
        ([{"name": "route", "parameters": {"to": {"via": {"a": 1, "b": 2}}}}], False),
        ([{"name": "route", "parameters": {"mode": "#/$defs/place"}}], True),
        ([{"name": "tree", "parameters": {"child": {"child": {"n": 1}}}}], True),
        ([{"name": "tree", "parameters": {"child": {"child": {"n": "1"}}}}], False),
        ([{"name": "now", "parameters": {}}, {"name": "tree", "parameters": {}}], True),
        ([{"name": "gone", "parameters": {}}], False),
        ([{"name": "now", "parameters": {}, "extra": 1}], False),
        ([{"name": "now"}], False),
        ([], False),
        ({}, False),
    ],
)
def test_the_schema_of_required_calls(answer, is_valid):
    schema = forced_schema([CITY, STREET, TREE, BARE], None, is_parallel=True)
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(answer) == is_valid


def test_without_parallel_calls_there_is_one():
    call = {"name": "now", "parameters": {}}
    schema = Draft202012Validator(forced_schema([BARE], None, is_parallel=False))
    assert schema.is_valid([call])
    assert not schema.is_valid([call, call])


def test_equal_definitions_are_kept_once():
    twin = Tool("forecast", CITY.parameters)
    assert list(forced_schema([CITY, twin], None, is_parallel=True)["$defs"]) == ["place"]


def test_the_schema_of_a_named_function_is_its_own():
    assert forced_schema([CITY, BARE], "weather", is_parallel=True) == CITY.parameters
    assert forced_schema([CITY, BARE], "now", is_parallel=False)["type"] == "object"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InvalidRequestError, match="there is no tool 'gone'"):
        forced_schema([CITY], "gone", is_parallel=True)
    with pytest.raises(InvalidRequestError, match="there are no tools"):
        forced_schema([], None, is_parallel=True)
    deep: dict = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        forced_schema([Tool("deep", deep)], None, is_parallel=True)
