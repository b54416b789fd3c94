import json

import pytest

from octavo.outputs.parsers.tools.argument_types import argument_json, argument_types

SCHEMA = {
    "properties": {
        "s": {"type": "string"},
        "several": {"type": ["integer", "null"]},
        "union": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "open": {"anyOf": [{"type": "string"}, {}]},
        "both": {"allOf": [{"type": "object"}, {"description": "x"}]},
        "referred": {"$ref": "#/$defs/a~1b"},
        "circle": {"$ref": "#/$defs/circle"},
        "lost": {"$ref": "#/$defs/none"},
        "outside": {"$ref": "https://example.com/schema"},
        "listed": {"enum": ["a", 1, None]},
        "fixed": {"const": True},
        "nullable": {"type": "integer", "nullable": True},
        "python": {"type": "dict"},
        "shape": {"properties": {}},
        "many": {"items": {"type": "string"}},
        "wrong": 5,
    },
    "$defs": {"a/b": {"type": "number"}, "circle": {"$ref": "#/$defs/circle"}},
}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("s", {"string"}),
        ("several", {"integer", "null"}),
        ("union", {"string", "array"}),
        ("open", set()),
        ("both", {"object"}),
        ("referred", {"number"}),
        ("circle", set()),
        ("lost", set()),
        ("outside", set()),
        ("listed", {"string", "integer", "null"}),
        ("fixed", {"boolean"}),
        ("nullable", {"integer", "null"}),
        ("python", {"object"}),
        ("shape", {"object"}),
        ("many", {"array"}),
        ("wrong", set()),
        ("unknown", set()),
    ],
)
def test_the_schema_tells_the_types(name, types):
    assert argument_types(SCHEMA, name) == types
    assert argument_types(None, name) == set()
    assert argument_types({"properties": 5}, name) == set()


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"string"}, "12"),
        ("12", {"integer"}, 12),
        ("12", {"number"}, 12),
        (" 1.5e3 ", {"number"}, 1500),
        ("12", {"string", "integer"}, 12),
        ("12", set(), 12),
        ("012", set(), "012"),
        ("twelve", {"integer"}, "twelve"),
        ("12", {"boolean"}, "12"),
        ("True", {"boolean"}, True),
        ("false", {"boolean", "string"}, False),
        ("true", {"string", "null"}, "true"),
        ("None", {"integer"}, None),
        ("null", {"string", "null"}, None),
        ("None", {"string"}, "None"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': (1, None)}", {"object"}, {"a": [1, None]}),
        ("{'a': open('x')}", {"object"}, "{'a': open('x')}"),
        ('{"a": 1} and more', {"object"}, '{"a": 1} and more'),
        ("[1]", {"string", "array"}, [1]),
        ("[1]", {"string"}, "[1]"),
        ('"5"', {"integer"}, "5"),
        ('"quoted"', set(), '"quoted"'),
        ("", {"integer"}, ""),
        ("", set(), ""),
        ("[" * 5000, {"array"}, "[" * 5000),
    ],
)
def test_bare_text_gets_its_type(text, types, value):
    assert json.loads(argument_json(text, frozenset(types))) == value
