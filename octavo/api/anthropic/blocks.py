"""Converts an answer's parts to content-block events; a whole answer is gathered from the same events."""

import base64
import hashlib
import json

import msgspec
import pydantic_core

from octavo.api.anthropic.events import (
    Block,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from octavo.outputs.parsers.base import AnswerPart, ContentText, ReasoningText, ToolCallArguments, ToolCallBegin

EMPTY_OBJECT = msgspec.Raw(b"{}")


class BlockWriter:
    """Opens, fills and closes blocks, one at a time, in the order in which the parts come.

    White space alone makes no block: between calls it is an accident of the model's format, and Anthropic's API takes
    no such blocks back. What comes while a call's input is not whole yet waits for the call's end.

    Args:
        is_parallel: whether there may be more than one call; further ones are dropped.
        shows_thinking: whether thinking blocks have their text; else they are empty.

    Attributes:
        num_tool_uses: calls so far.
    """

    def __init__(self, *, is_parallel: bool = True, shows_thinking: bool = True) -> None:
        self.num_tool_uses = 0
        self._is_parallel = is_parallel
        self._shows_thinking = shows_thinking
        self._num_blocks = 0
        self._open: type[AnswerPart] | None = None
        self._blank_kind: type[AnswerPart] | None = None
        self._blank: list[str] = []
        self._reasoning_texts: list[str] = []
        self._digest = hashlib.sha256()
        self._input: list[str] = []
        self._is_object: bool | None = None
        self._num_checked = 0
        self._is_whole = False
        self._waiting: list[ReasoningText | ContentText] = []

    @property
    def thinking(self) -> str:
        """All reasoning so far."""
        return "".join(self._reasoning_texts)

    def add_part(self, part: AnswerPart) -> list[BlockEvent]:
        """The events that a part brings."""
        match part:
            case ToolCallBegin(index, name, call_id):
                if index > 0 and not self._is_parallel:
                    return []
                self.num_tool_uses += 1
                events = self._end_call()
                return events + self._begin(ToolCallBegin, ToolUseBlock(call_id or "", name, EMPTY_OBJECT))
            case ToolCallArguments(index, text):
                if not text or self._open is not ToolCallBegin or (index > 0 and not self._is_parallel):
                    return []
                return self._add_input(text)
            case ReasoningText() | ContentText():
                if self._open is ToolCallBegin and not self._is_call_whole():
                    self._waiting.append(part)
                    return []
                return self._end_call() + self._add_text(part)

    def flush(self) -> list[BlockEvent]:
        """The answer has ended: close what is open."""
        return self._end_call() + self._close()

    def _end_call(self) -> list[BlockEvent]:
        waiting, self._waiting = self._waiting, []
        return [event for part in waiting for event in self._add_text(part)]

    def _add_input(self, text: str) -> list[BlockEvent]:
        """More of the open call's input; held back for good if it does not begin like an object."""
        self._input.append(text)
        if self._is_object is None:
            beginning = "".join(self._input)
            if not beginning.strip():
                return []
            self._is_object = beginning.lstrip().startswith("{")
            text = beginning
        return [self._delta(InputJsonDelta(text))] if self._is_object else []

    def _is_call_whole(self) -> bool:
        """Whether the open call's input is all there; looked at again only when there is more of it."""
        if len(self._input) > self._num_checked:
            self._num_checked = len(self._input)
            try:
                pydantic_core.from_json("".join(self._input))
            except (ValueError, TypeError):
                return False
            self._is_whole = True
        return self._is_whole

    def _add_text(self, part: ReasoningText | ContentText) -> list[BlockEvent]:
        kind, text = type(part), part.text
        if kind is ReasoningText:
            self._reasoning_texts.append(text)
        events: list[BlockEvent] = []
        if self._open is not kind:
            text = self._unless_blank(kind, text)
            if not text:
                return []
            events = self._begin(kind, TextBlock("") if kind is ContentText else ThinkingBlock("", ""))
        if not text:
            return []
        if kind is ContentText:
            return [*events, self._delta(TextDelta(text))]
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        return [*events, self._delta(ThinkingDelta(text))] if self._shows_thinking else events

    def _close(self) -> list[BlockEvent]:
        if self._open is None:
            return []
        events: list[BlockEvent] = []
        if self._open is ToolCallBegin and self._is_object is False:
            events.append(self._delta(InputJsonDelta(bytes(tool_input("".join(self._input))).decode())))
        if self._open is ReasoningText:
            events.append(self._delta(SignatureDelta(base64.b64encode(self._digest.digest()).decode())))
        self._open, self._blank_kind = None, None
        return [*events, BlockStop(self._num_blocks - 1)]

    def _unless_blank(self, kind: type[AnswerPart], text: str) -> str:
        """All text of that kind that waits for its block, once there is more than white space."""
        if self._blank_kind is not kind:
            self._blank_kind, self._blank = kind, []
        self._blank.append(text)
        return "".join(self._blank) if text.strip() else ""

    def _begin(self, kind: type[AnswerPart], block: Block) -> list[BlockEvent]:
        events = self._close()
        self._open, self._blank_kind = kind, None
        self._digest = hashlib.sha256()
        self._input, self._is_object = [], None
        self._num_checked, self._is_whole = 0, False
        self._num_blocks += 1
        return [*events, BlockStart(self._num_blocks - 1, block)]

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> BlockDelta:
        return BlockDelta(self._num_blocks - 1, delta)


def gather_blocks(events: list[BlockEvent]) -> list[Block]:
    """Whole blocks from all of their events."""
    blocks: list[Block] = []
    texts: list[list[str]] = []
    for event in events:
        match event:
            case BlockStart(_, block):
                blocks.append(msgspec.structs.replace(block))
                texts.append([])
            case BlockDelta(index, TextDelta(text) | ThinkingDelta(text) | InputJsonDelta(text)):
                texts[index].append(text)
            case BlockDelta(index, SignatureDelta(signature)):
                reasoning_text = blocks[index]
                assert isinstance(reasoning_text, ThinkingBlock)
                reasoning_text.signature = signature
    for block, pieces in zip(blocks, texts, strict=True):
        match block:
            case TextBlock():
                block.text = "".join(pieces)
            case ThinkingBlock():
                block.thinking = "".join(pieces)
            case ToolUseBlock():
                block.input = tool_input("".join(pieces))
    return blocks


def tool_input(arguments: str) -> msgspec.Raw:
    """A call's arguments as a JSON object, whatever the model wrote.

    Arguments that the answer's end cut short are read as far as they go, as clients do with streams. What is no JSON
    object at all comes as ``{"arguments": TEXT}``: an empty object might pass for a call without arguments.
    """
    if not arguments.strip():
        return EMPTY_OBJECT
    try:
        text = arguments.encode()
        beginning = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return _as_text(arguments)
    if not isinstance(beginning, dict):
        return _as_text(arguments)
    try:
        pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        return msgspec.Raw(pydantic_core.to_json(beginning, inf_nan_mode="null"))
    return msgspec.Raw(text)


def _as_text(arguments: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"arguments": arguments}).encode())
