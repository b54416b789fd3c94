"""Parts become blocks: in order, one open at a time, alike however the parts were cut."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.anthropic.blocks import BlockWriter, gather_blocks, tool_input
from octavo.api.anthropic.events import (
    ENCODER,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    Message,
    MessageStart,
    MessageUsage,
    encode_event,
)
from octavo.outputs.parsers.base import AnswerPart, ContentText, ReasoningText, ToolCallArguments, ToolCallBegin

texts = st.text(st.sampled_from(' \n\tab{}"é😀'), max_size=8)
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerPart]:
    """Whole parts of an answer: no two texts of one kind are neighbours."""
    parts: list[AnswerPart] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "thought", "call"]), max_size=6)):
        if kind == "call":
            parts.append(ToolCallBegin(num_calls, draw(st.sampled_from(["f", "g"])), f"call_{num_calls}"))
            value = draw(
                st.dictionaries(texts, st.one_of(texts, st.integers(), st.lists(texts, max_size=2)), max_size=2)
            )
            parts.append(ToolCallArguments(num_calls, json.dumps(value, ensure_ascii=False)))
            num_calls += 1
        else:
            made = ContentText if kind == "content" else ReasoningText
            if not parts or not isinstance(parts[-1], made):
                parts.append(made(draw(texts)))
    return parts


def write(parts: list[AnswerPart], **options: Any) -> list[BlockEvent]:
    writer = BlockWriter(**options)
    return [event for part in parts for event in writer.add_part(part)] + writer.flush()


def blocks(events: list[BlockEvent]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(ENCODER.encode(gather_blocks(events)))
    return shown


def cut(part: AnswerPart, data: st.DataObject) -> list[AnswerPart]:
    if isinstance(part, ToolCallBegin):
        return [part]
    places = sorted(data.draw(st.lists(st.integers(0, len(part.text)), max_size=4)))
    pieces = [part.text[a:b] for a, b in zip([0, *places], [*places, len(part.text)], strict=True)]
    if isinstance(part, ToolCallArguments):
        return [ToolCallArguments(part.index, piece) for piece in pieces]
    return [type(part)(piece) for piece in pieces]


@given(answers(), st.data())
def test_cuts_do_not_matter(parts: list[AnswerPart], data: st.DataObject) -> None:
    pieces = [piece for part in parts for piece in cut(part, data)]
    assert blocks(write(pieces)) == blocks(write(parts))


@given(answers(), st.data())
def test_nothing_but_white_space_is_lost(parts: list[AnswerPart], data: st.DataObject) -> None:
    shown = blocks(write([piece for part in parts for piece in cut(part, data)]))
    for kind, field, made in (("text", "text", ContentText), ("thinking", "thinking", ReasoningText)):
        given_text = "".join("".join(part.text.split()) for part in parts if isinstance(part, made))
        assert "".join("".join(block[field].split()) for block in shown if block["type"] == kind) == given_text
    assert all(block["text"].strip() for block in shown if block["type"] == "text")
    calls = [block for block in shown if block["type"] == "tool_use"]
    assert [call["id"] for call in calls] == [part.call_id for part in parts if isinstance(part, ToolCallBegin)]
    arguments = [json.loads(part.text) for part in parts if isinstance(part, ToolCallArguments)]
    assert [call["input"] for call in calls] == arguments


@given(answers(), st.data())
def test_the_order_of_events(parts: list[AnswerPart], data: st.DataObject) -> None:
    open_block: str | None = None
    num_blocks = 0
    for event in write([piece for part in parts for piece in cut(part, data)]):
        match event:
            case BlockStart(index, block):
                assert open_block is None and index == num_blocks
                open_block, num_blocks = str(block.__struct_config__.tag), num_blocks + 1
            case BlockDelta(index, delta):
                assert open_block is not None and index == num_blocks - 1
                assert delta.__struct_config__.tag in DELTAS[open_block]
            case BlockStop(index):
                assert open_block is not None and index == num_blocks - 1
                open_block = None
    assert open_block is None


@given(answers(), st.integers(0, 60))
def test_the_client_adds_up_what_we_add_up(parts: list[AnswerPart], num_kept: int) -> None:
    """Also if the answer ends in the middle of a call."""
    pieces: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, ToolCallBegin):
            pieces.append(part)
        elif isinstance(part, ToolCallArguments):
            pieces += [ToolCallArguments(part.index, char) for char in part.text]
        else:
            pieces += [type(part)(char) for char in part.text]
    events = write(pieces[:num_kept])
    message = Message(
        id="m", model="x", content=[], stop_reason=None, stop_sequence=None, usage=MessageUsage(1, 0, 0, 0)
    )
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in [MessageStart(message), *events]:
        data = json.loads(encode_event(event).split(b"data: ")[1])
        snapshot = accumulate_event(event=data, current_snapshot=snapshot, json_bufs=buffers)
    assert [block.to_dict() for block in snapshot.content] == blocks(events)


def test_every_thought_is_signed() -> None:
    (first, _, second) = blocks(write([ReasoningText("a"), ContentText("b"), ReasoningText("c")]))
    assert first["signature"] and second["signature"] and first["signature"] != second["signature"]
    (again,) = blocks(write([ReasoningText("a")]))
    assert again == first


def test_thoughts_left_out() -> None:
    events = write([ReasoningText("secret"), ContentText("b")], shows_thinking=False)
    assert b"secret" not in b"".join(map(encode_event, events))
    assert [block["type"] for block in blocks(events)] == ["thinking", "text"]


def test_what_comes_amid_a_call_waits() -> None:
    parts: list[AnswerPart] = [
        ToolCallBegin(0, "f", "a"),
        ToolCallArguments(0, '{"x": '),
        ReasoningText("hm"),
        ContentText("and"),
        ToolCallArguments(0, "1}"),
        ContentText(" so"),
        ToolCallBegin(1, "g", "b"),
        ToolCallArguments(1, "{}"),
        ContentText("on"),
    ]
    shown = blocks(write(parts))
    assert [block["type"] for block in shown] == ["tool_use", "thinking", "text", "tool_use", "text"]
    assert shown[0]["input"] == {"x": 1}
    assert shown[2]["text"] == "and so"


def test_text_after_a_call_does_not_wait() -> None:
    writer = BlockWriter()
    writer.add_part(ToolCallBegin(0, "f", "a"))
    writer.add_part(ToolCallArguments(0, '{"x": 1}'))
    assert [type(event) for event in writer.add_part(ContentText("on"))] == [BlockStop, BlockStart, BlockDelta]
    assert writer.add_part(ToolCallArguments(0, "\n")) == []


@pytest.mark.parametrize("arguments", [', "a', "Paris", "[1, 2]", " 5"])
def test_input_that_is_no_object_is_one_in_streams_too(arguments: str) -> None:
    parts: list[AnswerPart] = [ToolCallBegin(0, "f", "a"), *(ToolCallArguments(0, char) for char in arguments)]
    deltas = [event.delta for event in write(parts) if isinstance(event, BlockDelta)]
    (delta,) = [delta for delta in deltas if isinstance(delta, InputJsonDelta)]
    assert json.loads(delta.partial_json) == {"arguments": arguments} == blocks(write(parts))[0]["input"]


def test_one_call_at_most() -> None:
    parts: list[AnswerPart] = [
        ToolCallBegin(0, "f", "a"),
        ToolCallArguments(0, "{}"),
        ToolCallBegin(1, "g", "b"),
        ToolCallArguments(1, '{"x": 1}'),
        ContentText("after"),
    ]
    assert [block["type"] for block in blocks(write(parts, is_parallel=False))] == ["tool_use", "text"]
    assert len(blocks(write(parts))) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        (' {"a": [1, {"b": null}]}\n', {"a": [1, {"b": None}]}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ("", {}),
        (" \n", {}),
        ("{", {}),
        ('{"a": "Par', {}),
        ('{"a": 1, "b": {"c": [2, 3', {"a": 1, "b": {"c": [2, 3]}}),
        ('{"a": 1e999, "b": [', {"a": None, "b": []}),
        ('{"n": 123456789012345678901234567890, "m', {"n": 123456789012345678901234567890}),
        ('{"n": ' + "9" * 5000, {"arguments": '{"n": ' + "9" * 5000}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
        ("[1, 2", {"arguments": "[1, 2"}),
        ("3", {"arguments": "3"}),
        ("Paris", {"arguments": "Paris"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("{'a': 1}", {"arguments": "{'a': 1}"}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        ('{"a": "\ud800"}', {"arguments": '{"a": "\ud800"}'}),
    ],
)
def test_a_calls_input_is_an_object(arguments: str, expected: dict[str, Any]) -> None:
    assert json.loads(ENCODER.encode(tool_input(arguments))) == expected
