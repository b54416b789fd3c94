import json
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.outputs.parsers.base import ContentText, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.registry import detect, run_plugin
from octavo.outputs.parsers.tools import registry
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS, detect_tools, tool_parser
from tests.outputs.parsers.cuts import joined

NO_TOKENS = frozenset().__contains__

TEMPLATES = [
    ('{{ \'<tool_call>\' }}{"name": "f", "arguments": {}}</tool_call>', "hermes"),
    ("<tool_call>\n<function=example>\n<parameter=x>", "qwen3_coder"),
    ("<tool_call>{function-name}<arg_key>{arg-key}</arg_key><arg_value>", "glm45"),
    ("'<｜tool▁calls▁begin｜>' + '```json'", "deepseek_v3"),
    ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'", "deepseek_v31"),
    ("<｜DSML｜function_calls>", "deepseek_v32"),
    ("<｜DSML｜tool_calls>", "deepseek_v4"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("]<]minimax[>[<tool_call>", "minimax_m3"),
    ("<seed:tool_call>\n<function=f>\n<parameter=a>", "seed_oss"),
    ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
    ("[func_name1(params_name1=params_value1, params_name2=params_value2...)]", "pythonic"),
    ("Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]", "pythonic"),
    ("formatted as functools[{", "phi4_mini_json"),
    ('please output \\"<function_call> {', "granite-20b-fc"),
    ("<|python_start|>", "llama4_pythonic"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|channel|>commentary json <|constrain|>", "openai"),
    ("<function_calls>", "olmo3"),
    ("'<|tool_call|>' then a JSON list", "granite"),
    ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
    (None, None),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_the_template_tells_the_format(template, name):
    assert detect_tools(template, None, NO_TOKENS) == name
    assert detect(template, None, NO_TOKENS)[1] == name


def test_type_and_vocabulary_tell_it_where_the_template_does_not():
    assert detect_tools(None, "deepseek_v32", NO_TOKENS) == "deepseek_v32"
    assert detect_tools(None, "deepseek_v41", NO_TOKENS) == "deepseek_v41"
    assert detect_tools("{{ messages }}", "gpt_oss", NO_TOKENS) == "openai"
    assert detect_tools(None, "step3p5", NO_TOKENS) == "step3p5"
    assert detect_tools(None, "llama", NO_TOKENS) is None
    assert detect_tools(None, "mistral", {"[TOOL_CALLS]"}.__contains__) == "mistral"


def test_a_template_decides_before_the_type():
    assert detect_tools("<tool_call>", "llama4", NO_TOKENS) == "hermes"


def test_every_format_has_tags_to_start_a_grammar_and_a_reader():
    for name, tool_format in TOOL_FORMATS.items():
        assert tool_format.models
        assert tool_format.start_tags or name == "openai"
        parser = tool_parser(name)
        assert joined(parser.parse_delta("Hi.") + parser.flush()) == [ContentText("Hi.")]


def test_harmony_calls_are_read_without_a_parser_of_thoughts():
    parser = tool_parser("openai")
    parts = parser.parse_delta("<|channel|>commentary to=functions.f<|message|>{}<|call|>") + parser.flush()
    assert joined(parts) == [ToolCallBegin(0, "f"), ToolCallArguments(0, "{}")]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no tool-call parser 'nope'; there are .*hermes"):
        tool_parser("nope")


PLUGIN = """
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.registry import ToolFormat, register_tool_format


class MineParser(JsonMachine, start=("<mine>",), end=("</mine>",)):
    pass


register_tool_format("mine", ToolFormat(MineParser, "my model", ("<mine>",)))
"""


def test_a_plugin_brings_a_format(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(registry, "TOOL_FORMATS", dict(TOOL_FORMATS))
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    run_plugin(str(file))
    parts = registry.tool_parser("mine").parse_delta('<mine>{"name": "f", "arguments": {"a": 1}}</mine>')
    assert parts[0] == ToolCallBegin(0, "f")
    assert json.loads(parts[1].text) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", "failed: ZeroDivisionError"),
        ("from octavo.outputs.parsers.tools.registry import *\nregister_tool_format('x', int)", "needs a name"),
    ],
)
def test_a_broken_plugin_is_rejected_with_an_error(tmp_path: Path, text, error):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=error):
        run_plugin(str(file))


def test_a_missing_plugin_is_rejected_with_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="There is no file"):
        run_plugin(str(tmp_path / "none.py"))


def test_the_page_names_every_format():
    page = (Path(__file__).parents[4] / "docs" / "reasoning-and-tools.md").read_text()
    assert [name for name in TOOL_FORMATS if f"`{name}`" not in page.split("## Tool calls")[1]] == []
