import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.answer import AnswerParser
from octavo.outputs.parsers.base import (
    ContentBreak,
    ContentText,
    PromptEnd,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
)
from octavo.outputs.parsers.harmony import HarmonyMachine, HarmonyReasoningParser, HarmonyToolParser
from tests.outputs.parsers.cuts import check_cuts, joined, places, run

PROMPT = (
    "<|start|>user<|message|>What is <|channel|>analysis<|message|>?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>A channel.<|end|>"
    "<|start|>user<|message|>And?<|end|><|start|>assistant"
)
NEXT = "<|start|>assistant"


A_THEN_B = [ReasoningText("A"), ContentText("B")]


def machine():
    return HarmonyMachine(PROMPT)


def call(name, arguments, index=0):
    return [ToolCallBegin(index, name), ToolCallArguments(index, arguments)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
            [ReasoningText("So."), ContentText("Two.")],
        ),
        ("<|channel|>final<|message|>Two.", [ContentText("Two.")]),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [ContentText("{}")]),
        ("<|message|>No channel.<|return|>", [ContentText("No channel.")]),
        ("No header at all.", [ContentText("No header at all.")]),
        # A preamble is for the reader; two messages of a kind are two lines.
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}<|channel|>final<|message|>Two.",
            [ContentText("I look."), ContentBreak("\n"), ContentText("Two.")],
        ),
        (
            f"<|channel|>analysis<|message|>A<|end|>{NEXT}<|channel|>analysis<|message|>B<|end|>",
            [ReasoningText("A\nB")],
        ),
        # A recipient may stand in the channel or with the role, with and without a type.
        ('<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        ('<|channel|>commentary to=functions.f<|constrain|>json<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        ('<|channel|>commentary to=functions.f json<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        ('<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        (' to=functions.f<|channel|>commentary<|constrain|>json<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        (' to=functions.f<|message|>{"a": 1}<|call|>', call("f", '{"a": 1}')),
        (
            '<|channel|>analysis to=browser.search<|message|>{"query": "x"}<|call|>',
            call("browser.search", '{"query": "x"}'),
        ),
        ('<|channel|>commentary to=f<|message|>{"a": 1}', call("f", '{"a": 1}')),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", call("f", "{}")),
        ('<|channel|>commentary to=functions.f<|message|> \n{"a": 1}<|call|>', call("f", '{"a": 1}')),
        (
            '<|channel|>analysis to=python code<|message|>print("a")\n<|call|>',
            call("python", '{"code": "print(\\"a\\")\\n"}'),
        ),
        ("<|channel|>commentary to=user<|message|>Hello", [ContentText("Hello")]),
        # The recipient without "to=": only what can be nothing but a tool is one.
        ("<|channel|>commentary functions.f <|constrain|>json<|message|>{}<|call|>", call("f", "{}")),
        ("<|channel|>analysis browser.open<|message|>{}<|call|>", call("browser.open", "{}")),
        ("<|channel|>commentary to= functions.f<|message|>{}<|call|>", call("f", "{}")),
        ("<|channel|>final json<|message|>{}", [ContentText("{}")]),
        (
            f"<|channel|>commentary to=functions.f<|message|>{{}}<|call|>{NEXT}"
            '<|channel|>commentary to=functions.g<|message|>{"b": []}<|call|>',
            [*call("f", "{}"), *call("g", '{"b": []}', 1)],
        ),
        # What the model should not have written.
        (
            "<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B",
            [ReasoningText("A"), ContentText("B")],
        ),
        ("<|channel|>analysis<|message|>A<|channel|>final<|message|>B", A_THEN_B),
        ("<|channel|>final<|message|>A<|channel|>analysis<|message|>B", [ContentText("A"), ReasoningText("B")]),
        (
            "<|channel|>analysis<|message|>A<|end|>assistant<|channel|>final<|message|>B",
            [ReasoningText("A"), ContentText("B")],
        ),
        (
            "<|channel|>analysis<|message|>A<|end|>B without a header",
            [ReasoningText("A"), ContentText("B without a header")],
        ),
        ("<|channel|>final<|message|>A<|end|><|start|>user<|message|>Thanks!<|end|>", [ContentText("A")]),
        (
            "<|channel|>final<|message|>A<|end|>"
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}<|end|>",
            [ContentText("A")],
        ),
        (
            "<|channel|>final<|message|>A<|end|><|start|>web.find to=assistant<|channel|>analysis<|message|>{}<|end|>",
            [ContentText("A")],
        ),
        # No message tag: what stands behind the header is its body.
        (
            "<|channel|>analysis A b<|end|><|start|>assistant<|channel|>final<|message|>B",
            [ReasoningText("A b"), ContentText("B")],
        ),
        ("A<|end|><|start|>assistant<|channel|>analysis<|message|>B", [ContentText("A"), ReasoningText("B")]),
        ("I use python to<|return|>", [ContentText("I use python to")]),
        ('<|channel|>commentary to=functions.f json {"a": 1}<|call|>', call("f", '{"a": 1}')),
        ("<|channel|>commentary to=functions.f I shall<|end|>", [ContentText("I shall")]),
        ("<|channel|>commentary to=functions.f<|call|>", []),
        ("<|channel|>final<|message|>A<|end|><|start|>user So?<|end|>", [ContentText("A")]),
        ("<|channel|>analysis<|message|>A<|end|><|start|>assis", [ReasoningText("A")]),
        ("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>fin", [ReasoningText("A")]),
        ("<|channel|>commentary to=functions.f <|constrain|>js", []),
        ("<|channel|>analysis<|message|>A <|en", [ReasoningText("A <|en")]),
    ],
)
def test_a_message_goes_where_its_header_says(text, expected):
    assert check_cuts(machine, text, [1, 9, 10, 30]) == expected


def header(kind, name, form):
    """A header as the model may write it."""
    if kind in ("analysis", "final", "commentary"):
        return f"<|channel|>{kind}<|message|>"
    return [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        f" to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
        f" to=functions.{name}<|channel|>commentary<|message|>",
        f"<|channel|>analysis to=functions.{name} code<|message|>",
    ][form]


bodies = st.text('abc <|"{\n\u00e9', min_size=1, max_size=10)
values = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.text('ab<|"\\\n\u00e9', max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("xy", max_size=3), inner, max_size=3)),
    max_leaves=6,
)
messages = st.one_of(
    st.tuples(st.sampled_from(["analysis", "final", "commentary"]), bodies),
    st.tuples(st.just("call"), st.dictionaries(st.text("xy", max_size=3), values, max_size=3)),
)


def render(generated, form):
    """The answer's text, and its parts as a list of messages says them."""
    text, parts, num_calls, seen = "", [], 0, set()
    for number, (kind, body) in enumerate(generated):
        text += (NEXT if number else "") + header(kind, f"f{number}", form)
        if kind == "call":
            written = json.dumps(body, ensure_ascii=False)
            parts += call(f"f{number}", written, num_calls)
            num_calls += 1
        else:
            written = body
            part = ReasoningText if kind == "analysis" else ContentText
            if part in seen:
                parts.append(ContentBreak("\n") if part is ContentText else ReasoningText("\n"))
            parts.append(part(written))
            seen.add(part)
        text += written + {"call": "<|call|>", "final": "<|return|>"}.get(kind, "<|end|>")
    return text, joined(parts)


@settings(max_examples=200)
@given(st.lists(messages, min_size=1, max_size=4), st.integers(0, 3), places(), st.integers(0, 300))
def test_generated_messages_come_back_however_they_are_cut(generated, form, cuts, end):
    text, expected = render(generated, form)
    assert check_cuts(machine, text, cuts) == expected
    truncated = check_cuts(machine, text[:end], cuts)
    for got, whole in zip(truncated, expected, strict=False):
        if isinstance(got, ToolCallBegin):
            assert got == whole
        else:
            # Only the beginning of a tag at the very end shows more than the whole answer.
            assert type(got) is type(whole)
            assert whole.text.startswith(got.text) or text[:end].endswith(got.text.rpartition("<")[2])


@pytest.mark.parametrize(
    ("text", "cut_off", "whole"),
    [
        ("<|channel|>commentary to=functions.f<|message|>", [ToolCallBegin(0, "f")], call("f", "{}")),
        ('<|channel|>commentary to=functions.f<|message|>{"a', call("f", '{"a'), call("f", '{"a')),
        (
            "<|channel|>analysis to=python code<|message|>a",
            call("python", '{"code": "a'),
            call("python", '{"code": "a"}'),
        ),
        ("<|channel|>analysis to=python code<|message|>", [ToolCallBegin(0, "python")], call("python", '{"code": ""}')),
        ("<|channel|>final Yes", [], [ContentText("Yes")]),
        ('<|channel|>commentary to=functions.f {"a": 1}', [], call("f", '{"a": 1}')),
        ("<|channel|>commentary to=functions.f <|constrain|>json", [], []),
        ("Yes", [ContentText("Yes")], [ContentText("Yes")]),
    ],
)
def test_a_model_that_ends_its_answer_ends_its_message(text, cut_off, whole):
    """The stop token is not in the text: only who ended the answer tells a whole call from one that breaks off."""
    assert check_cuts(machine, text, [3]) == cut_off
    parser = machine()
    assert joined(parser.parse_delta(text) + parser.flush(is_whole=True)) == whole


def test_a_header_has_a_limit():
    text = "no header " * 80 + "<|channel|>final<|message|>Two."
    assert check_cuts(machine, text, [511, 512, 513, 514]) == [
        *(ContentText("no header " * 80), ContentBreak("\n"), ContentText("Two.")),
    ]
    parser = machine()
    assert joined([part for character in text[:700] for part in parser.parse_delta(character)]) == [
        ContentText(text[:700])
    ]
    endless = "<|channel|>" + "w" * 600
    assert check_cuts(machine, endless + "<|return|>", [300, 512]) == [ContentText(endless)]
    thought = "so it goes on " * 80
    assert check_cuts(machine, f"<|channel|>analysis {thought}<|end|>", [511, 512]) == [ReasoningText(thought)]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<|start|>assistant<|channel|>final<|message|>", "Two", [ContentText("Two")]),
        ("<|start|>assistant<|channel|>analysis<|message|>I was", " here<|end|>", [ReasoningText(" here")]),
        ("<|start|>assistant<|channel|>", "analysis<|message|>So", [ReasoningText("So")]),
        ("cut off in the middle of<|end|>", "<|start|>assistant<|channel|>final<|message|>A", [ContentText("A")]),
        ("", "<|channel|>final<|message|>A", [ContentText("A")]),
        ("<|start|>assistant<|channel|>", "ana", []),
        ("<|start|>assistant to=", "functions.f", []),
        ("<|start|>assistant", "Yes", [ContentText("Yes")]),
        # The prompt's end looks like the beginning of a tag.
        ("<|start|>assistant<|channel|>final<|message|>a <|", "b", [ContentText("b")]),
        ("<|start|>assistant<|channel|>analysis<|message|>a <", "|end|>b", [ContentText("b")]),
        ("<|start|>assistant<", "b c", [ContentText("b c")]),
        (
            '<|start|>assistant to=functions.f<|message|>{}<|call|><|start|>assistant to=functions.g<|message|>{"a"',
            ": 1}<|call|><|start|>assistant to=functions.h<|message|>{}<|call|>",
            [*call("g", ": 1}"), *call("h", "{}", 1)],
        ),
    ],
)
def test_the_answer_goes_on_with_the_prompts_last_message(prompt, text, expected):
    assert check_cuts(lambda: HarmonyMachine(prompt), text, [2]) == expected


ANSWER = f"<|channel|>analysis<|message|>So<|end|>{NEXT}<|channel|>commentary to=functions.f<|message|>{{}}<|call|>"


def test_one_machine_serves_both_parsers_of_an_answer():
    def start():
        return AnswerParser(HarmonyReasoningParser(PromptEnd(PROMPT)), HarmonyToolParser())

    assert check_cuts(start, ANSWER, [5]) == [ReasoningText("So"), *call("f", "{}")]
    parser = start()
    run(parser, [ANSWER])
    assert parser.num_tool_calls == 1


def test_each_parser_alone_leaves_out_what_nobody_asked_for():
    assert run(HarmonyReasoningParser(PromptEnd(PROMPT)), [ANSWER]) == [ReasoningText("So")]
    assert run(AnswerParser(None, HarmonyToolParser()), [ANSWER]) == call("f", "{}")
