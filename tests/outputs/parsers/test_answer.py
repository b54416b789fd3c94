import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.answer import AnswerParser
from octavo.outputs.parsers.base import (
    ContentText,
    PromptEnd,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolParser,
)
from octavo.outputs.parsers.harmony import HarmonyReasoningParser, HarmonyToolParser
from octavo.outputs.parsers.registry import reasoning_format, reasoning_names
from octavo.outputs.parsers.tags import TagScanner, TagSet
from octavo.outputs.parsers.tools.registry import tool_parser
from tests.outputs.parsers.cuts import check_cuts, places, run


class BracketParser(ToolParser):
    """``[[`` begins a call to f, ``]]`` ends it; the least parser that holds something back."""

    def __init__(self):
        self._scanner = TagScanner()
        self._num_calls = 0
        self._is_in_call = False

    def parse_delta(self, text):
        self._scanner.append_text(text)
        return self._run()

    def flush(self):
        self._scanner.end_text()
        return self._run()

    def _run(self):
        parts = []
        while True:
            text, tag = self._scanner.take_until(TagSet(["]]"] if self._is_in_call else ["[["]))
            if text:
                parts.append(ToolCallArguments(self._num_calls - 1, text) if self._is_in_call else ContentText(text))
            if tag is None:
                return parts
            self._is_in_call = not self._is_in_call
            if self._is_in_call:
                parts.append(ToolCallBegin(self._num_calls, "f"))
                self._num_calls += 1


def parser(name="step3", prompt="<think>\n", tools=True):
    return AnswerParser(reasoning_format(name).start(PromptEnd(prompt)), BracketParser() if tools else None)


def test_calls_are_found_in_the_content_only():
    text = "[[no]]\n</think>\n\nHi [[1]] and [[2]]<think>[[no]]</think>[[3]]"
    assert check_cuts(parser, text, [9, 22, 30]) == [
        ReasoningText("[[no]]"),
        ContentText("Hi "),
        ToolCallBegin(0, "f"),
        ToolCallArguments(0, "1"),
        ContentText(" and "),
        ToolCallBegin(1, "f"),
        ToolCallArguments(1, "2"),
        ReasoningText("\n[[no]]"),
        ToolCallBegin(2, "f"),
        ToolCallArguments(2, "3"),
    ]
    counted = parser()
    run(counted, [text])
    assert counted.num_tool_calls == 3


def test_without_parsers_everything_is_content():
    assert run(AnswerParser(None, None), ["<think>", "", "[[1]]"]) == [ContentText("<think>[[1]]")]
    assert not AnswerParser(None, None).is_reasoning


def test_either_parser_may_be_missing():
    assert run(parser(tools=False), ["a</think>[[1]]"]) == [ReasoningText("a"), ContentText("[[1]]")]
    assert run(AnswerParser(None, BracketParser()), ["<think>[[1]]"]) == [
        ContentText("<think>"),
        ToolCallBegin(0, "f"),
        ToolCallArguments(0, "1"),
    ]


def test_what_both_hold_back_comes_out_at_the_end():
    whole = parser("qwen3")
    assert whole.is_reasoning
    assert whole.parse_delta("a</thi") == [ReasoningText("a")]
    assert whole.flush() == [ReasoningText("</thi")]
    content = parser("qwen3", "<think></think>")
    assert not content.is_reasoning
    assert content.parse_delta("b[") == [ContentText("b")]
    assert content.flush() == [ContentText("[")]


def test_content_of_harmony_goes_through_another_parser_of_calls():
    """A grammar may bind gpt-oss's final message to be a list of calls."""
    both = AnswerParser(HarmonyReasoningParser(PromptEnd("<|start|>assistant")), BracketParser())
    text = "<|channel|>analysis<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>[[1]]"
    assert run(both, [text]) == [ReasoningText("So"), ToolCallBegin(0, "f"), ToolCallArguments(0, "1")]


HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>'
CALLED = [ToolCallBegin(0, "f"), ToolCallArguments(0, '{"a":1}')]


@pytest.mark.parametrize(
    ("name", "tool_name", "prompt", "text"),
    [
        (
            "qwen3",
            "hermes",
            "<think>\n",
            'So\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>',
        ),
        ("qwen3", "hermes", "<think>\n", 'So\n<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>'),
        ("mistral", "mistral", "[/INST]", '[THINK]So[/THINK][TOOL_CALLS]f[ARGS]{"a":1}'),
        (
            "hunyuan_a13b",
            "hunyuan_a13b",
            "",
            '<think>\nSo\n</think>\n<answer>\n<tool_calls>[{"name":"f","arguments":{"a":1}}]</tool_calls>\n</answer>',
        ),
        (
            "inkling",
            "inkling",
            "<|message_model|>",
            "<|content_thinking|>So<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
            '{"name":"f","args":{"a":1}}<|end_message|>',
        ),
        (
            "openai_gptoss",
            "openai",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>So<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>',
        ),
    ],
)
def test_a_thought_and_a_call_as_models_write_them(name, tool_name, prompt, text):
    def start():
        return AnswerParser(reasoning_format(name).start(PromptEnd(prompt)), tool_parser(tool_name))

    assert check_cuts(start, text, [4, 17, 40]) == [ReasoningText("So"), *CALLED]


PIECES = ["<think>", "</think>", "[[", "]]", "[", "\n", "a", "<", "[THINK]", "[/THINK]"]


@settings(max_examples=150)
@given(
    st.sampled_from(reasoning_names()),
    st.lists(
        st.sampled_from(["<think>", "</think>", "[[", "]]", "[", "\n", "a", "<", "[THINK]", "[/THINK]"]), max_size=12
    ),
    places(),
)
def test_cuts_do_not_matter(name, pieces, cuts):
    check_cuts(lambda: parser(name, ""), "".join(pieces), cuts)


@pytest.mark.parametrize("has_reasoning", [True, False])
def test_a_call_is_whole_where_the_model_ended_the_answer(has_reasoning):
    """The token that ends a call is the one that ends the answer, and that one is not in the text."""

    def parser():
        return AnswerParser(HarmonyReasoningParser(PromptEnd()) if has_reasoning else None, HarmonyToolParser())

    text = "<|channel|>commentary to=functions.f<|message|>"
    for is_whole, arguments in ((True, [ToolCallArguments(0, "{}")]), (False, [])):
        answer = parser()
        assert answer.parse_delta(text) + answer.flush(is_whole) == [ToolCallBegin(0, "f"), *arguments]


def test_a_forgotten_message_tag_loses_nothing_without_tools():
    parser = AnswerParser(HarmonyReasoningParser(PromptEnd()), None)
    assert parser.parse_delta("<|channel|>final Yes") + parser.flush(is_whole=True) == [ContentText("Yes")]
