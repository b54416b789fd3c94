"""Whatever a model writes, and however it is cut, a reasoning parser tells the same."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.base import ContentText, PromptEnd, ReasoningText
from octavo.outputs.parsers.reasoning.formats import TAGGED_FORMATS
from octavo.outputs.parsers.reasoning.tagged import TaggedFormat
from octavo.outputs.parsers.registry import reasoning_format, reasoning_names
from tests.outputs.parsers.cuts import check_cuts, cut, places, run

EARLIER_TURNS = (
    "<|im_start|>user\nWhat is <think> for?<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nA tag."
)
TURN_ENDS = "<|im_end|>\n<|im_start|>user\nAnd </think>?<|im_end|>\n<|im_start|>assistant\n"


def tags_of(name):
    format_ = reasoning_format(name)
    if not isinstance(format_, TaggedFormat):
        return [
            *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>"),
            *("<|eom|>", "<|eot|>", "to=self", "to=user", "to=functions.f", "analysis", "final", "assistant", "python"),
            *("<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|end_message|>"),
            "<|content_invoke_tool_json|>",
        ]
    return [
        *format_.start_tags,
        *format_.end_tags,
        *format_.implicit_end_tags,
        *format_.content_open_tags,
        *format_.content_close_tags,
        *format_.ignored_tags,
    ]


def answers(tags):
    """Texts full of tags, of their beginnings, and of white space."""
    beginnings = st.sampled_from(tags).flatmap(lambda tag: st.integers(1, len(tag)).map(lambda end: tag[:end]))
    words = st.sampled_from(["\n", "\n\n", " ", "  \n", "a", "so", "<", "é", "{", "\n" * 70, "w" * 600])
    return st.lists(st.one_of(st.sampled_from(tags), beginnings, words), max_size=10).map("".join)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", reasoning_names())
@settings(max_examples=60)
@given(data=st.data())
def test_cuts_do_not_matter(name, data):
    tags = tags_of(name)
    prompt = data.draw(
        st.sampled_from(
            ["", EARLIER_TURNS + TURN_ENDS, "".join(tags[:1]), "<|im_start|>x\n" + "".join(tags[:2]), "abc"]
        )
    )
    switch = data.draw(st.sampled_from([None, {"enable_thinking": False}, {"thinking": True}]))
    text = data.draw(answers(tags))

    def start():
        return reasoning_format(name).start(PromptEnd(prompt, switch))

    check_cuts(start, text, data.draw(places()))


@pytest.mark.parametrize("format_", TAGGED_FORMATS, ids=lambda format_: format_.name)
@settings(max_examples=25)
@given(
    thought=st.text("ab <{\n", max_size=12),
    content=st.text("ab <{\n", max_size=12),
    cuts=places(),
    end=st.integers(0, 80),
)
def test_a_generated_answer_is_split_where_it_was_joined(format_, thought, content, cuts, end):
    thought, content = "t" + thought + "t", "c" + content + "c"
    text = f"{format_.start_tags[0]}\n{thought}\n{format_.end_tags[0]}\n\n{content}"
    if format_.name == "minimax_m2_append_think":
        expected = [ContentText(text)]
    else:
        expected = [ReasoningText(thought), ContentText(content)]
    assert check_cuts(lambda: format_.start(PromptEnd()), text, cuts) == expected
    # Cut short, it never shows a thought as content, nor anything that the whole answer does not show.
    truncated = check_cuts(lambda: format_.start(PromptEnd()), text[:end], cuts)
    for part in truncated:
        if isinstance(part, ContentText) and end >= len(format_.start_tags[0]):
            assert "".join(p.text for p in expected if isinstance(p, ContentText)).startswith(part.text)


@settings(max_examples=100)
@given(st.sampled_from(reasoning_names()), st.text(max_size=40), places())
def test_text_without_tags_comes_back(name, text, cuts):
    """White space at the ends apart, nothing is lost, but for what looks like a header that breaks off."""
    assume(not any(start.startswith(text.strip()) for start in ("assistant", *tags_of(name))))
    parser = reasoning_format(name).start(PromptEnd())
    given_out = "".join(part.text for part in run(parser, cut(text, cuts))).removeprefix("<think>")
    assert given_out.strip(" \n") == text.strip(" \n")


def test_one_character_is_held_back_no_longer_than_needed():
    parser = reasoning_format("qwen3").start(PromptEnd("<think>\n"))
    assert parser.parse_delta("Let x <") == [ReasoningText("Let x ")]
    assert parser.parse_delta(" y") == [ReasoningText("< y")]
    assert parser.parse_delta("</thi") == []
    assert parser.is_reasoning
    assert parser.parse_delta("nk>") == []
    assert not parser.is_reasoning
    assert parser.parse_delta("\n\nY") == [ContentText("Y")]
