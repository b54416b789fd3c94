from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.outputs.parsers import registry
from octavo.outputs.parsers.base import ContentText, PromptEnd, ReasoningText
from octavo.outputs.parsers.registry import detect, reasoning_format, reasoning_names, run_plugin
from tests.outputs.parsers.cuts import run

PLUGIN = """
from dataclasses import replace

from octavo.outputs.parsers.registry import reasoning_format, register

register(replace(reasoning_format("qwen3"), name="mine", start_tags=("<mine>",), end_tags=("</mine>",)))
"""


@pytest.fixture(autouse=True)
def formats(monkeypatch):
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))


def test_every_format_has_what_the_engine_needs():
    for name in reasoning_names():
        format_ = reasoning_format(name)
        assert format_.name == name
        assert all(format_.end_tags)


def test_an_alias_and_a_name_are_the_same_format():
    for alias, name in registry._ALIASES.items():
        assert alias not in reasoning_names()
        assert reasoning_format(alias) is reasoning_format(name)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no reasoning parser 'qwen33'; there are .*qwen3"):
        reasoning_format("qwen33")


THOUGHTS = {"openai_gptoss": "<|channel|>analysis<|message|>a<|end|>"}


@pytest.mark.parametrize("name", reasoning_names())
def test_a_grammar_begins_behind_the_end_tag(name):
    """What the engine waits for does end a thought."""
    format_ = reasoning_format(name)
    for tag in format_.end_tags:
        parser = format_.start(PromptEnd())
        parser.parse_delta(THOUGHTS.get(name, ""))
        parser.parse_delta(tag)
        assert not parser.is_reasoning


def test_a_plugin_brings_a_format(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    run_plugin(str(file))
    parser = reasoning_format("mine").start(PromptEnd("<mine>"))
    assert run(parser, ["a</mine>b"]) == [ReasoningText("a"), ContentText("b")]


@pytest.mark.parametrize(
    ("file_name", "code", "message"),
    [
        ("a.py", None, "There is no file"),
        ("a.txt", "", "must end in .py"),
        ("a.py", "1 / 0", "ZeroDivisionError"),
        ("a.py", "def", "SyntaxError"),
        ("a.py", "from octavo.outputs.parsers.registry import register\nregister('qwen3')", "needs a name"),
    ],
)
def test_a_broken_plugin_is_refused(tmp_path, file_name, code, message):
    file = tmp_path / file_name
    if code is not None:
        file.write_text(code)
    with pytest.raises(ConfigError, match=message):
        run_plugin(str(file))


def no_token(token):
    return False


@pytest.mark.parametrize(
    ("template", "model_type", "expected"),
    [
        (None, None, None),
        ("<|im_start|>{{ message.content }}", "qwen2", None),
        ("<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>", "qwen3", "qwen3"),
        ("<|im_start|>assistant\n<think>\n</think>", "nemotron_h", "nemotron_v3"),
        ("<|im_start|>assistant\n<think>\n</think>", None, "think"),
        ("<｜Assistant｜><think>\\n</think>", "deepseek_v3", "deepseek_r1"),
        ("{% if thinking %}<｜Assistant｜><think>{% else %}</think>", "deepseek_v3", "deepseek_v3"),
        ("[gMASK]<sop><|assistant|></think>", None, "glm45"),
        ("[gMASK]<sop><|assistant|></think>", "glm4_moe", "glm45"),
        ("]~b]ai\n<think>\n</think>", None, "minimax_m2"),
        ("<seed:think>", None, "seed_oss"),
        ("<|channel|>analysis<|message|>", None, "openai_gptoss"),
        (None, "gpt_oss", "openai_gptoss"),
        ("Here is my thought process: after", "granite", "granite"),
        ("<|start_of_role|><think></think><response></response>", None, "granite"),
        ("<|START_THINKING|><|START_RESPONSE|>", "cohere2", "cohere_command3"),
        ("<|START_THINKING|><|START_TEXT|>", None, "cohere_command4"),
        ("<|channel>thought\n<channel|>", None, "gemma4"),
        ("[INST][THINK]", None, "mistral"),
        ("<think:opensource>", "hy_v4", "hy_v4"),
        ("<|im_start|>x</think>", "olmo3", "olmo3"),
        ("<|im_middle|><|tool_calls_section_begin|></think>", None, "kimi_k2"),
    ],
)
def test_auto_goes_by_the_template_and_the_type(template, model_type, expected):
    assert detect(template, model_type, no_token)[0] == expected
    assert expected is None or reasoning_format(expected)


def test_auto_knows_mistral_by_its_tokens():
    assert detect(None, None, {"[THINK]", "[INST]", "[TOOL_CALLS]"}.__contains__) == ("mistral", "mistral")


def test_auto_finds_the_tool_parser_too():
    assert detect("<|im_start|></think><tool_call>", "qwen3", no_token) == ("qwen3", "hermes")
    assert detect("<|im_start|></think><tool_call>", None, no_token) == ("think", "hermes")


PAGE = (Path(__file__).parents[3] / "docs" / "reasoning-and-tools.md").read_text()


@pytest.mark.parametrize("name", reasoning_names())
def test_the_docs_list_the_format(name):
    assert f"`{name}`" in PAGE


def test_the_docs_show_what_their_example_prints(capsys):
    section = PAGE.partition("### In Python")[2]
    code, _, rest = section.partition("```python\n")[2].partition("```")
    exec(code, {})
    assert capsys.readouterr().out == rest.partition("```\n")[2].partition("```")[0]
