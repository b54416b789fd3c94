import json

import pytest
import xgrammar

from octavo.outputs.parsers.base import Tool
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS
from octavo.outputs.parsers.tools.strict import CALL_FRAMES, strict_structural_tag
from octavo.sampling.grammar.structural import read_structural_tag
from tests.outputs.parsers.tools.rendering import RENDERINGS

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["text", "count"],
    "additionalProperties": False,
}
TOOLS = [Tool("f", SCHEMA, is_strict=True), Tool("get_weather", SCHEMA)]
# Of several ways to write calls, the one that the frame has.
BY_NAME = {rendering.name: rendering for rendering in RENDERINGS if "[TOOL_CALLS] " not in rendering.render([])}
BY_NAME["qwen3_json"] = BY_NAME["hermes"]
BY_NAME["mistral"] = next(r for r in RENDERINGS if "[ARGS]" in r.render([["f", {}]]))


@pytest.fixture(scope="module")
def compiler():
    vocabulary = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[256]))


def is_accepted(compiler, name, text):
    tag = read_structural_tag(strict_structural_tag(name, TOOLS)).value
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(json.dumps(tag)))
    return matcher.accept_string(text)


@pytest.mark.parametrize("name", sorted(CALL_FRAMES))
def test_calls_that_follow_the_schema_are_allowed_and_others_are_not(compiler, name):
    assert name in TOOL_FORMATS

    def write(*calls):
        return "Let me <b>see</b>.\n" + BY_NAME[name].render(calls)

    good = {"text": "a <b> \u00e9", "count": 5}
    assert is_accepted(compiler, name, write(["f", good]))
    assert is_accepted(compiler, name, write(["f", good], ["f", good]))
    assert is_accepted(compiler, name, write(["get_weather", {"text": "x"}]))
    assert not is_accepted(compiler, name, write(["f", {"text": "x", "count": "many"}]))
    assert not is_accepted(compiler, name, write(["gone", good]))


def test_nothing_is_bound_without_strict_tools_or_a_frame():
    assert strict_structural_tag("hermes", [Tool("f", SCHEMA)]) is None
    assert strict_structural_tag("pythonic", TOOLS) is None
