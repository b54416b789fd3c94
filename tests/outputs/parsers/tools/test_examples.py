"""Answers as models write them, with the calls that a reader finds in them."""

import json

import pytest

from octavo.outputs.parsers.base import ContentText, Tool, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.tools.registry import tool_parser
from tests.outputs.parsers.cuts import check_cuts

TOOLS = [
    Tool(
        "edit",
        {
            "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "all": {"type": "bool"},
                "marks": {"type": "array"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            }
        },
    )
]


def read(name, text):
    """Content, and names, ids and arguments of calls; the same in all cuts."""
    parts = check_cuts(lambda: tool_parser(name, TOOLS), text, [3, 7, 8, 20, 21, 50])
    content = "".join(part.text for part in parts if isinstance(part, ContentText))
    calls = [
        (begin.name, "".join(p.text for p in parts if isinstance(p, ToolCallArguments) and p.index == begin.index))
        for begin in parts
        if isinstance(begin, ToolCallBegin)
    ]
    return content, calls


WHOLE = [
    ("hermes", 'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "Sure.", [("f", {"a": 1})]),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>',
        "",
        [("f", {"a": "</tool_call>"}), ("g", {})],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\n\\"}"}</tool_call>', "", [("f", {"a": "\n"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', "", [("f", {"a": "x\ny"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', "", [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', "", [("f", {"a": 1})]),
    ("hermes", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', "", [("f", {}), ("g", {})]),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": "1"}}; {"name": "g", "parameters": {}}',
        "",
        [("f", {"a": "1"}), ("g", {})],
    ),
    ("llama3_json", 'I call {"name": "f", "parameters": {}}', "I call", [("f", {})]),
    ("llama3_json", '{"parameters": {"b": [1]}, "name": "f"}', "", [("f", {"b": [1]})]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdef123"}]', "", [("f", {"a": 1})]),
    (
        "mistral",
        'Hm.[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}[TOOL_CALLS]g{"b": 2}',
        "Hm.",
        [("f", {"a": 1}), ("g", {"b": 2})],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("f", {})],
    ),
    ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>", "", [("f", {})]),
    (
        "deepseek_v41",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
        '<｜DSML｜ parameter name="a" string="false">[1]</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        "",
        [("f", {"a": [1]})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=edit>\n<parameter=path>\n\nif a < b:\n    <b>x</b>\n\n</parameter>\n"
        "<parameter=line>\n7\n</parameter>\n<parameter=all>\nTrue\n</parameter>\n"
        "<parameter=marks>\n['a', None, 1.5]\n</parameter>\n</function>\n</tool_call>",
        "",
        [("edit", {"path": "\nif a < b:\n    <b>x</b>\n", "line": 7, "all": True, "marks": ["a", None, 1.5]})],
    ),
    # The start tag, and a parameter's end, are forgotten.
    (
        "qwen3_coder",
        "<function=edit>\n<parameter=path>\nx\n<parameter=line>\n7\n</function>\n</tool_call>",
        "",
        [("edit", {"path": "x", "line": 7})],
    ),
    ("qwen3_coder", "<function=edit><parameter=line>soon</parameter></function>", "", [("edit", {"line": "soon"})]),
    ("qwen3_coder", "<function=edit><parameter=note>null</parameter></function>", "", [("edit", {"note": None})]),
    ("qwen3_coder", "<function=edit><parameter=path>null</parameter></function>", "", [("edit", {"path": "null"})]),
    ("qwen3_coder", "<function=other><parameter=n>5</parameter></function>", "", [("other", {"n": 5})]),
    ("qwen3_coder", "<function=other><parameter=n>007</parameter></function>", "", [("other", {"n": "007"})]),
    (
        "minimax_m2",
        "<minimax:tool_call><invoke name='edit'><parameter name=line> 3 </parameter></invoke>"
        '<invoke name="g"></invoke></minimax:tool_call>',
        "",
        [("edit", {"line": 3}), ("g", {})],
    ),
    (
        "minicpm5",
        '<function name="edit"><param name="path"><![CDATA[a</param>b]]></param></function>',
        "",
        [("edit", {"path": "a</param>b"})],
    ),
    ("glm47", "<tool_call>f</tool_call>", "", [("f", {})]),
    (
        "glm45",
        "Ok\n<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value> x </arg_value>\n</tool_call>",
        "Ok",
        [("edit", {"path": " x "})],
    ),
    (
        "pythonic",
        '[a.b(x=-1, y=\'it\\\'s\', z="""q"q""", u="\\u00e9\\x41\\N{BULLET}", w=[(1,), {\'k\': None}]), f()]',
        "",
        [("a.b", {"x": -1, "y": "it's", "z": 'q"q', "u": "éA•", "w": [[1], {"k": None}]}), ("f", {})],
    ),
    (
        "olmo3",
        "<function_calls>\nf(a=true)\ng(b='x' 'y', )\n</function_calls>",
        "",
        [("f", {"a": True}), ("g", {"b": "xy"})],
    ),
    (
        "gemma4",
        '<|tool_call>call:f{a:<|"|>x, {y}<|"|>,b:[1,{c:true}],d:-2.5}<tool_call|>',
        "",
        [("f", {"a": "x, {y}", "b": [1, {"c": True}], "d": -2.5})],
    ),
    (
        "muse",
        '<atem:invoke name="edit.edit"><atem:parameter name="path">x</atem:parameter></atem:invoke>',
        "",
        [("edit", {"path": "x"})],
    ),
    ("gigachat3", '<|function_call|>{"name": "f", "arguments": {}}', "", [("f", {})]),
    (
        "cohere_command3",
        "<|START_RESPONSE|>Hi.<|END_RESPONSE|>"
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>',
        "Hi.",
        [("f", {"a": 1})],
    ),
    ("xlam", 'Here:\n```json\n[{"name": "f", "arguments": {"a": 1}}]\n```\nDone.', "Here:\nDone.", [("f", {"a": 1})]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), WHOLE)
def test_calls_of_whole_answers(name, text, content, calls):
    found_content, found = read(name, text)
    assert found_content == content
    assert [(function, json.loads(arguments)) for function, arguments in found] == calls


NO_CALLS = [
    ("hermes", "Use <tool_call> and </tool_call> as tags."),
    ("hermes", '<tool_call>{"name": 5}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("apertus", '<|tools_prefix|>[{"": {}}]<|tools_suffix|>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>" + '{"name": "' + "x" * 5000 + '"}'),
    ("llama3_json", '{"name": "Ada", "age": 36, "friend": {"name": "f", "parameters": {}}}'),
    ("llama3_json", '{"answer": [1, 2, {"name": "f", "parameters": {}}]} and [1, 2]'),
    ("llama3_json", '<|python_tag|>print("hi")'),
    ("llama3_json", '{"name": "f", "parameters": [1]}'),
    ("mistral", "[TOOL_CALLS] are rare"),
    ("qwen3_coder", "<tool_call>maybe</tool_call> <parameter=x>"),
    ("qwen3_coder", "a <function=> b"),
    ("glm45", "<tool_call>two words</tool_call>"),
    ("kimi_k2", "<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>"),
    ("pythonic", "[1] is a source, [f(x)](y) a link."),
    ("pythonic", "First this: [f(a=1)]"),
    ("pythonic", "[f(x, y)]"),
    ("gemma4", "<|tool_call>go<tool_call|>"),
    ("phi4_mini_json", "functools is a module; functools[0] is wrong"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_turns_out_to_be_no_call_is_content(name, text):
    assert read(name, text) == (text, [])


BROKEN = [
    # As the model wrote it up to the end tag, and then on as ever.
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call> ok', " ok", [("f", '{"a": 1,}}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {\'a\': 1}}</tool_call>', "", [("f", "{'a': 1}}")]),
    ("hermes", '<tool_call>{"name": "f", oops}</tool_call>', "", [("f", ", oops}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', "", [("f", '{"a": "x')]),
    ("hermes", '<tool_call>{"name": "f"', "", [("f", "")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}} text</tool_call>', " text</tool_call>", [("f", "{}")]),
    ("llama3_json", '{"name": "f", "parameters": {"a": tru}} rest', "", [("f", '{"a": tru}} rest')]),
    ("pythonic", "[f(a=1, b=foo), g()]", "", [("f", '{"a": 1, "b": foo), g()]')]),
    ("pythonic", "[f(a=1, 2)]", "", [("f", '{"a": 12)]')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": ' + "1" * 2000, "", [("f", "1" * 2000)]),
    ("pythonic", "[f(a=" + "1" * 2000, "", [("f", '{"a": ' + "1" * 2000)]),
    ("gemma4", "<|tool_call>call:f{a:" + "x" * 5000, "", [("f", '{"a": ' + "x" * 5000)]),
    ("pythonic", "[f(a='\\x4", "", [("f", '{"a": "\\x4')]),
    ("qwen3_coder", "<function=edit><parameter=path>half", "", [("edit", '{"path": "half')]),
    ("qwen3_coder", "<function=edit><parameter=line>12", "", [("edit", '{"line": 12')]),
    ("qwen3_coder", "<function=edit>why<parameter=line>12</parameter></function>", "why", [("edit", '{"line": 12}')]),
    ("glm45", "<tool_call>edit<arg_key>path</arg_key>x</tool_call>", "", [("edit", "<arg_key>path</arg_key>x")]),
    ("gemma4", "<|tool_call>call:f{a:}<tool_call|>x", "x", [("f", '{"a": }')]),
    (
        "deepseek_v31",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{a}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "",
        [("f", "{a}"), ("g", "{}")],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), BROKEN)
def test_calls_that_break_are_passed_on_as_they_are(name, text, content, calls):
    assert read(name, text) == (content, calls)


def test_ids_of_the_model_are_passed_on():
    kimi = "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert check_cuts(lambda: tool_parser("kimi_k2"), kimi, [9])[0] == ToolCallBegin(0, "f", "functions.f:3")
    mistral = "[TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{}"
    assert check_cuts(lambda: tool_parser("mistral"), mistral, [9])[0] == ToolCallBegin(0, "f", "abc123DEF")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json", "pythonic", "gemma4"])
def test_nesting_without_end_is_a_broken_call(name):
    deep = "[" * 100_000
    starts = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"a": ',
        "qwen3_coder": "<function=f><parameter=a>",
        "llama3_json": '{"name": "f", "parameters": {"a": ',
        "pythonic": "[f(a=",
        "gemma4": "<|tool_call>call:f{a:",
    }
    _, calls = read(name, starts[name] + deep + "</parameter>")
    assert calls[0][0] == "f"
    assert calls[0][1].count("[") == len(deep)
