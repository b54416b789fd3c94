"""What a request asks for is checked, and backends are chosen for it."""

import json
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.records import StructuredOutputsParams
from octavo.sampling.grammar.source import GrammarSource, read_source

NEEDS_GUIDANCE = {"type": "object", "required": ["z"]}
NEEDS_XGRAMMAR = {"type": "object", "properties": {"a": {}}, "maxProperties": 3}


def read(**fields: Any) -> GrammarSource:
    return read_source(StructuredOutputsParams(**fields))


def tag(form: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


@pytest.mark.parametrize(
    ("fields", "backends"),
    [
        ({"json": {"type": "string"}}, ("xgrammar", "guidance")),
        ({"json": NEEDS_GUIDANCE}, ("guidance",)),
        ({"json": NEEDS_XGRAMMAR}, ("xgrammar",)),
        ({"json": json.dumps(NEEDS_GUIDANCE)}, ("guidance",)),
        ({"json": {"type": "string"}, "backend": "guidance"}, ("guidance",)),
        ({"json": {"type": "string"}, "whitespace_pattern": " "}, ("guidance",)),
        ({"json": {"type": "string", "pattern": "^[a-z]{1,5000}$"}}, ("guidance", "xgrammar")),
        ({"regex": "[a-z]{1,5000}"}, ("guidance", "xgrammar")),
        ({"regex": r"\p{L}"}, ("guidance",)),
        ({"grammar": 'root ::= "a"'}, ("xgrammar", "guidance")),
        ({"grammar": 'start: "a"'}, ("guidance",)),
        ({"structural_tag": tag({"type": "any_text"})}, ("xgrammar",)),
    ],
)
def test_auto_takes_a_backend_that_follows_all_of_it(fields: dict[str, Any], backends: tuple[str, ...]) -> None:
    assert read(**fields).backends == backends


def test_the_server_says_which_backend_if_the_request_does_not() -> None:
    assert read_source(StructuredOutputsParams(regex="a"), "guidance").backends == ("guidance",)
    assert read_source(StructuredOutputsParams(regex="a", backend="xgrammar"), "guidance").backends == ("xgrammar",)


def test_the_server_may_forbid_white_space() -> None:
    """A pattern of the request's own still says what stands between the parts."""
    for fields in ({"json_object": True}, {"json": {"type": "string"}}):
        assert read(**fields).layout == "any"
        assert read_source(StructuredOutputsParams(**fields), is_compact=True).layout == "compact"
    own = StructuredOutputsParams(json_object=True, whitespace_pattern=" ")
    assert read_source(own, is_compact=True).layout == "regex: "


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (
            {"json": {"type": "array", "uniqueItems": True}},
            "^json: the schema uses 'uniqueItems', which no grammar backend follows; leave it out.$",
        ),
        (
            {"json": NEEDS_GUIDANCE, "backend": "xgrammar"},
            "which the xgrammar backend does not follow.*another backend",
        ),
        ({"json": {"not": {}}, "backend": "xgrammar"}, "does not follow; leave it out.$"),
        ({"json": "{"}, "not JSON"),
        ({"json": "[" * 60_000}, "nested too deep"),
        ({"json": '{"enum": [NaN]}'}, "no number of JSON"),
        ({"json": {"enum": [float("inf")]}}, "JSON does not have"),
        ({"json": {"enum": [[{1}]]}}, "JSON does not have"),
        ({"json": "3"}, "must be a JSON object"),
        ({"json": "false"}, "allows no answer"),
        ({"choice": ["a", "b\0"]}, "NUL"),
        ({"grammar": "root ::= " + "(" * 5000}, "brackets within each other"),
        ({"grammar": 'root ::= "a"{1,1000000}'}, "repeats"),
        ({"grammar": 'start: "a"~1000000'}, "repeats"),
        ({"grammar": "%import /etc/passwd\nstart: X"}, "imports '/etc/passwd'"),
        ({"grammar": 'start: "a"', "backend": "xgrammar"}, "uses Lark"),
        ({"regex": r"\p{L}", "backend": "xgrammar"}, r"uses '\\p'"),
        ({"json_object": True, "whitespace_pattern": "(?=a)"}, "whitespace_pattern: the regex uses lookahead"),
        ({"structural_tag": "[]"}, "must be a JSON object"),
        ({"structural_tag": "{}"}, "must have a 'format'"),
        ({"structural_tag": tag({"type": "spell"})}, "unknown type 'spell'"),
        ({"structural_tag": tag({"type": "regex", "pattern": "(?=a)"})}, "lookahead"),
        ({"structural_tag": tag({"type": "json_schema", "json_schema": {"not": {}}})}, "'not'"),
        ({"structural_tag": tag({"type": "repeat", "min": 1, "max": 10**9, "content": {}})}, "'repeat'"),
        ({"structural_tag": tag({"type": "or", "elements": [{"type": "any_text"}] * 1200})}, "more than 1024"),
        (
            {"json": {**NEEDS_GUIDANCE, **NEEDS_XGRAMMAR}},
            "'required' .* xgrammar .* guidance does not follow; leave one",
        ),
        ({"structural_tag": tag({"type": "any_text"}), "backend": "guidance"}, "structural tag with 'format'"),
        (
            {"structural_tag": json.dumps({"structures": [{"begin": "<a>", "end": ""}], "triggers": ["<b"]})},
            "which no trigger opens",
        ),
    ],
)
def test_refusals_say_why(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidRequestError, match=what):
        read(**fields)


def test_equal_requests_are_equal_sources() -> None:
    """Whatever form they come in: compiled once."""
    schema = {"type": "object", "title": "ignored", "properties": {"a": {"type": "integer"}}}
    assert read(json=schema) == read(json=json.dumps({key: schema[key] for key in ("type", "properties")}))
    assert read(choice=["a", "b", "a"]) == read(choice=["a", "b"])


def test_older_structural_tags_are_written_as_newer_ones() -> None:
    older = {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f"]}
    form = {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {
                "type": "tag",
                "begin": "<f>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                "end": "</f>",
            }
        ],
    }
    written = read(structural_tag=json.dumps(older))
    assert json.loads(written.text) == {"type": "structural_tag", "format": form}
    assert written.backends == ("xgrammar", "guidance")
