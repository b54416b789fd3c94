"""From an answer's parts to content blocks, as events; a whole answer is the sum of the same events."""

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
from octavo.outputs.parsers.parts import ContentText, Part, ReasoningText, ToolCallArguments, ToolCallBegin

EMPTY_OBJECT = msgspec.Raw(b"{}")


class BlockWriter:
    """Opens, fills and closes blocks, one at a time, in the order in which the parts come.

    White space alone makes no block: between calls it is an accident of the model's format, and Anthropic's API takes
    no such blocks back.

    Args:
        is_parallel: whether there may be more than one call; further ones are dropped.
        shows_thinking: whether thoughts are spelled out; else their blocks are empty.

    Attributes:
        num_tool_uses: calls so far.
        thinking: all thoughts so far.
    """

    def __init__(self, *, is_parallel: bool = True, shows_thinking: bool = True) -> None:
        self.num_tool_uses = 0
        self.thinking = ""
        self._is_parallel = is_parallel
        self._shows_thinking = shows_thinking
        self._num_blocks = 0
        self._open: type[Part] | None = None
        self._blank_kind: type[Part] | None = None
        self._blank = ""
        self._digest = hashlib.sha256()

    def add(self, part: Part) -> list[BlockEvent]:
        """The events that a part brings."""
        match part:
            case ToolCallBegin(index, name, call_id):
                if index > 0 and not self._is_parallel:
                    return []
                self.num_tool_uses += 1
                return self._begin(ToolCallBegin, ToolUseBlock(call_id or "", name, EMPTY_OBJECT))
            case ToolCallArguments(index, text):
                if not text or (index > 0 and not self._is_parallel):
                    return []
                assert self._open is ToolCallBegin, "a call's arguments come before anything else begins"
                return [self._delta(InputJsonDelta(text))]
            case ReasoningText(text):
                return self._add_thinking(text)
            case ContentText(text):
                return self._add_text(text)

    def finish(self) -> list[BlockEvent]:
        """Close what is open."""
        if self._open is None:
            return []
        events: list[BlockEvent] = []
        if self._open is ReasoningText:
            events.append(self._delta(SignatureDelta(base64.b64encode(self._digest.digest()).decode())))
        self._open, self._blank_kind = None, None
        return [*events, BlockStop(self._num_blocks - 1)]

    def _add_text(self, text: str) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if self._open is not ContentText:
            text = self._unless_blank(ContentText, text)
            if not text:
                return []
            events = self._begin(ContentText, TextBlock(""))
        return [*events, self._delta(TextDelta(text))] if text else []

    def _add_thinking(self, text: str) -> list[BlockEvent]:
        self.thinking += text
        events: list[BlockEvent] = []
        if self._open is not ReasoningText:
            text = self._unless_blank(ReasoningText, text)
            if not text:
                return []
            events = self._begin(ReasoningText, ThinkingBlock("", ""))
            self._digest = hashlib.sha256()
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        if text and self._shows_thinking:
            events.append(self._delta(ThinkingDelta(text)))
        return events

    def _unless_blank(self, kind: type[Part], text: str) -> str:
        """All text of that kind that waits for its block, once there is more than white space."""
        if self._blank_kind is not kind:
            self._blank_kind, self._blank = kind, ""
        self._blank += text
        return self._blank if self._blank.strip() else ""

    def _begin(self, kind: type[Part], block: Block) -> list[BlockEvent]:
        events = self.finish()
        self._open, self._blank_kind = kind, None
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
                thought = blocks[index]
                assert isinstance(thought, ThinkingBlock)
                thought.signature = signature
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
