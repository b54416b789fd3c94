"""What holds in every format: calls come back as they were written, however the answer is cut or breaks off."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.base import ContentText, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS, tool_parser
from tests.outputs.parsers.cuts import check_cuts, cut, joined, places, run
from tests.outputs.parsers.tools.rendering import RENDERINGS, TOOLS, argument_sets, call_lists, without

EXAMPLES = settings(max_examples=6)
BY_RENDERING = pytest.mark.parametrize("rendering", RENDERINGS, ids=lambda rendering: rendering.name)


def calls_of(parts):
    """Names and argument texts of all calls, by their numbers."""
    calls = []
    for part in parts:
        if isinstance(part, ToolCallBegin):
            assert part.index == len(calls)
            calls.append([part.name, ""])
        elif isinstance(part, ToolCallArguments):
            assert part.index == len(calls) - 1
            calls[-1][1] += part.text
    return calls


def content_of(parts):
    return "".join(part.text for part in parts if isinstance(part, ContentText))


def start(rendering):
    return lambda: tool_parser(rendering.name, TOOLS)


@BY_RENDERING
@EXAMPLES
@given(calls=call_lists(), before=st.sampled_from(["", "Let me see.", "\n\n", "A <b>c</b> {} x\n"]), cuts=places())
def test_calls_come_back_as_they_were_written(rendering, calls, before, cuts):
    calls = without([list(call) for call in calls], rendering.reserved)
    before = before if rendering.allows_text_before else ""
    parts = check_cuts(start(rendering), before + rendering.render(calls), cuts)
    assert [[name, json.loads(text)] for name, text in calls_of(parts)] == calls
    assert content_of(parts) == before.rstrip()


@BY_RENDERING
@EXAMPLES
@given(calls=call_lists(), place=st.integers(0, 600), cuts=places())
def test_an_answer_that_breaks_off_is_a_beginning_of_the_whole(rendering, calls, place, cuts):
    calls = without([list(call) for call in calls], rendering.reserved)
    text = rendering.render(calls)
    broken = text[:place]
    check_cuts(start(rendering), broken, cuts)
    parser = start(rendering)()
    parts = joined([part for piece in cut(broken, cuts) for part in parser.parse_delta(piece)])
    whole = calls_of(run(start(rendering)(), [text]))
    begun = calls_of(parts)
    for (name, arguments), (whole_name, whole_arguments) in zip(begun, whole, strict=False):
        assert name == whole_name
        assert whole_arguments.startswith(arguments)
    assert len(begun) <= len(whole)
    assert not content_of(parts)


@BY_RENDERING
@settings(max_examples=12)
@given(data=st.data(), cuts=places())
def test_whatever_comes_is_read_alike_in_all_cuts(rendering, data, cuts):
    """Pieces of the format in any order: nothing crashes, and words outside calls are kept."""
    example = rendering.render([["f", {"text": "word", "count": 5}]])
    edges = sorted(data.draw(st.lists(st.integers(0, len(example)), max_size=4)))
    torn = [example[begin:end] for begin, end in zip([0, *edges], [*edges, len(example)], strict=True)]
    tags = [*TOOL_FORMATS[rendering.name].start_tags, *rendering.extra_pieces, *torn]
    junk = ["{", "}", "[", "]", '"', "'", ",", ":", "\\", "\n", "name", '"name"', "f(", "a=1", "5", "true", "<", ">"]
    junk += ["x" * 300, '"' + "\\n" * 130]
    text = "".join(data.draw(st.lists(st.sampled_from(tags + junk), max_size=12)))
    check_cuts(start(rendering), text, cuts)


@BY_RENDERING
@EXAMPLES
@given(
    words=st.lists(st.sampled_from(["Hello", " ", "\n", "world", "1.", "<b>", "(x)", "é"]), max_size=10), cuts=places()
)
def test_text_without_calls_is_content(rendering, words, cuts):
    text = "".join(words)
    assert content_of(check_cuts(start(rendering), text, cuts)) == text


@BY_RENDERING
def test_text_of_strings_comes_while_it_is_generated(rendering):
    text = rendering.render([["f", {"text": "a long story"}]])
    parser = start(rendering)()
    parts = parser.parse_delta(text[: text.index("story")])
    assert calls_of(parts)[0][1].endswith("a long ")


@BY_RENDERING
@EXAMPLES
@given(arguments=argument_sets(), after=st.sampled_from(["\nDone.", " and more"]))
def test_text_after_a_call_is_content(rendering, arguments, after):
    arguments = without(arguments, rendering.reserved)
    parts = run(start(rendering)(), [rendering.render([["f", arguments]]) + after])
    assert [[name, json.loads(text)] for name, text in calls_of(parts)] == [["f", arguments]]
    assert content_of(parts) == after


def test_every_format_is_written_here():
    elsewhere = {"muse_glimmer", "musespark1x", "deepseek_v41", "minimax_m3", "openai"}
    assert set(TOOL_FORMATS) - {rendering.name for rendering in RENDERINGS} == elsewhere
