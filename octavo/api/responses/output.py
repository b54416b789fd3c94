"""From the parts of an answer to output items and stream events.

The output depends on the parts' text alone, not on how it was split: adjacent parts of one kind make one item.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from octavo.api.logprobs import ChatTokenLogprob
from octavo.api.responses import events
from octavo.api.responses.events import ResponseStreamEvent
from octavo.api.responses.items import (
    BuiltinCallItem,
    CustomToolCallItem,
    FunctionCallItem,
    McpApprovalRequestItem,
    McpCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningPart,
    Status,
    custom_input,
    public_item,
    seal_reasoning,
)
from octavo.outputs.parsers.base import (
    AnswerPart,
    ContentBreak,
    ContentText,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
)


@dataclass(frozen=True, slots=True)
class CallKind:
    """Who carries out a call.

    Attributes:
        kind: ``approval`` if the client is asked first; ``custom`` if the client's tool takes text.
        name: the tool's own name, which may differ from the one that the model sees.
        namespace: in which the client has put its tool.
        server_label: of an MCP server.
        item_type: of a built-in tool's items, such as ``web_search_call``.
    """

    kind: Literal["function", "custom", "mcp", "approval", "builtin"]
    name: str
    server_label: str = ""
    item_type: str = ""
    namespace: str | msgspec.UnsetType = msgspec.UNSET


CallItem = FunctionCallItem | CustomToolCallItem | McpCallItem | McpApprovalRequestItem | BuiltinCallItem


@dataclass(slots=True)
class OutputCall:
    """A call of the model in this round, and the item that shows it.

    Attributes:
        is_done: nothing more will happen to the item.
    """

    output_index: int
    item: CallItem
    kind: CallKind
    is_done: bool = False


@dataclass(slots=True)
class _Open:
    """The item that is being written."""

    item: ReasoningItem | MessageItem | CallItem
    call: OutputCall | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)


class OutputBuilder:
    """Writes the output items of one response.

    Args:
        id_tail: makes the items' ids unique.
        classify: from a tool's name, as the model says it, to who carries it out.
        seals_reasoning: also give the reasoning as ``encrypted_content``.

    Attributes:
        calls: of the round.
    """

    def __init__(self, id_tail: str, classify: Callable[[str], CallKind], *, seals_reasoning: bool = False) -> None:
        self.items: list[OutputItem] = []
        self.calls: list[OutputCall] = []
        self._id_tail = id_tail
        self._classify = classify
        self._seals_reasoning = seals_reasoning
        self._open: _Open | None = None
        self._blank = ""  # white space that may turn out to separate two other items
        self._num_before_round = 0

    def snapshot(self) -> list[OutputItem]:
        """The items with what is written so far of the last one."""
        if self._open is None:
            return self.items
        item, text = self._open.item, "".join(self._open.pieces)
        growing: OutputItem
        match item:
            case MessageItem():
                growing = msgspec.structs.replace(item, content=[OutputText(text, [], list(self._open.logprobs))])
            case ReasoningItem():
                growing = msgspec.structs.replace(item, content=[ReasoningPart(text)])
            case CustomToolCallItem():
                growing = item
            case _:
                growing = msgspec.structs.replace(item, arguments=text)
        return [*self.items[:-1], growing]

    def begin_round(self) -> None:
        """The model is asked once more."""
        self.calls = []
        self._num_before_round = len(self.items)

    def add_part(self, part: AnswerPart, logprobs: Sequence[ChatTokenLogprob] = ()) -> Iterator[ResponseStreamEvent]:
        """Take the next part.

        Args:
            logprobs: of the tokens after a piece of content.
        """
        match part:
            case ReasoningText(text):
                yield from self._reasoning(text)
            case ContentBreak():
                self._blank = ""
                yield from self._close("completed")
            case ContentText(text):
                yield from self._content(text, logprobs)
            case ToolCallBegin(_, name, call_id):
                yield from self._begin_call(name, call_id or "")
            case ToolCallArguments(_, text):
                yield from self._arguments(text)

    def end_round(self, status: Status) -> Iterator[ResponseStreamEvent]:
        """The model has ended its answer, or was cut: what is open is closed.

        Args:
            status: of the item that is open; those before it are complete.
        """
        yield from self._close(status)
        if len(self.items) == self._num_before_round:
            # A round without items yields a message, possibly empty.
            blank, self._blank = self._blank, ""
            yield from self._open_message()
            if blank:
                yield from self._delta(blank, ())
            yield from self._close(status)
        self._blank = ""

    def finish_call(self, call: OutputCall, *progress: str) -> Iterator[ResponseStreamEvent]:
        """A call's item is as it will stay.

        Args:
            progress: types of progress events to send first.
        """
        call.is_done = True
        for kind in progress:
            yield events.ToolProgress(kind, call.item.id, call.output_index)
        yield events.OutputItemDone(call.output_index, public_item(call.item))

    def abandon(self) -> Iterator[ResponseStreamEvent]:
        """Nothing more will come, whatever is open: all of it is closed as incomplete."""
        yield from self._close("incomplete")
        for call in self.calls:
            if not call.is_done and isinstance(call.item, McpCallItem | BuiltinCallItem):
                call.item.status = "incomplete"
                yield from self.finish_call(call)

    def new_id(self, prefix: str) -> str:
        """The id for the next item."""
        return f"{prefix}_{self._id_tail}{len(self.items):x}"

    def _reasoning(self, text: str) -> Iterator[ResponseStreamEvent]:
        self._blank = ""
        if self._open is None or not isinstance(self._open.item, ReasoningItem):
            yield from self._close("completed")
            item = ReasoningItem(self.new_id("rs"), "in_progress", [])
            index = self._begin(item)
            yield events.OutputItemAdded(index, ReasoningItem(item.id, "in_progress", []))
            yield events.ContentPartAdded(item.id, index, 0, ReasoningPart(""))
            yield events.ReasoningPartAdded(item.id, index, 0, ReasoningPart(""))
        yield from self._delta(text, ())

    def _content(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> Iterator[ResponseStreamEvent]:
        if self._open is None or not isinstance(self._open.item, MessageItem):
            self._blank += text
            if not text.strip():
                return
            text, self._blank = self._blank, ""
            yield from self._close("completed")
            yield from self._open_message()
        yield from self._delta(text, logprobs)

    def _open_message(self) -> Iterator[ResponseStreamEvent]:
        item = MessageItem(self.new_id("msg"), "in_progress", [])
        index = self._begin(item)
        yield events.OutputItemAdded(index, MessageItem(item.id, "in_progress", []))
        yield events.ContentPartAdded(item.id, index, 0, OutputText(""))

    def _begin_call(self, name: str, call_id: str) -> Iterator[ResponseStreamEvent]:
        self._blank = ""
        yield from self._close("completed")
        kind = self._classify(name)
        item: CallItem
        match kind.kind:
            case "function":
                fc_id = self.new_id("fc")
                item = FunctionCallItem(fc_id, "in_progress", call_id, kind.name, "", kind.namespace)
            case "custom":
                ctc_id = self.new_id("ctc")
                item = CustomToolCallItem(ctc_id, "in_progress", call_id, kind.name, "", kind.namespace)
            case "mcp":
                item = McpCallItem(self.new_id("mcp"), "in_progress", kind.server_label, kind.name, "")
            case "approval":
                item = McpApprovalRequestItem(self.new_id("mcpr"), kind.server_label, kind.name, "")
            case "builtin":
                item = BuiltinCallItem(kind.item_type, self.new_id("bc"), "in_progress", name, "")
        index = self._begin(item)
        assert self._open is not None
        self._open.call = OutputCall(index, item, kind)
        self.calls.append(self._open.call)
        match item:
            case FunctionCallItem() | CustomToolCallItem():
                yield events.OutputItemAdded(index, msgspec.structs.replace(item))
            case McpCallItem():
                fresh = McpCallItem(item.id, "in_progress", item.server_label, item.name, "")
                yield events.OutputItemAdded(index, fresh)
                yield events.ToolProgress("response.mcp_call.in_progress", item.id, index)

    def _arguments(self, text: str) -> Iterator[ResponseStreamEvent]:
        if self._open is None or self._open.call is None:
            return  # of a call that was left out
        yield from self._delta(text, ())

    def _begin(self, item: ReasoningItem | MessageItem | CallItem) -> int:
        self._open = _Open(item)
        self.items.append(item)
        return len(self.items) - 1

    def _delta(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> Iterator[ResponseStreamEvent]:
        assert self._open is not None
        self._open.pieces.append(text)
        self._open.logprobs += logprobs
        item, index = self._open.item, len(self.items) - 1
        match item:
            case MessageItem():
                yield events.OutputTextDelta(item.id, index, 0, text, list(logprobs))
            case ReasoningItem():
                yield events.ReasoningTextDelta(item.id, index, 0, text)
            case FunctionCallItem():
                yield events.FunctionCallArgumentsDelta(item.id, index, text)
            case McpCallItem():
                yield events.McpCallArgumentsDelta(item.id, index, text)

    def _close(self, status: Status) -> Iterator[ResponseStreamEvent]:
        if self._open is None:
            return
        ended, self._open = self._open, None
        item, index, text = ended.item, len(self.items) - 1, "".join(ended.pieces)
        if ended.call is not None:
            # Calls that the server carries out are not done yet, unless the answer was cut.
            ended.call.is_done = status != "completed" or not isinstance(item, McpCallItem | BuiltinCallItem)
        match item:
            case MessageItem():
                part = OutputText(text, [], ended.logprobs)
                item.content, item.status = [part], status
                yield events.OutputTextDone(item.id, index, 0, text, ended.logprobs)
                yield events.ContentPartDone(item.id, index, 0, part)
                yield events.OutputItemDone(index, item)
            case ReasoningItem():
                reasoning_text = ReasoningPart(text)
                item.content, item.status = [reasoning_text], status
                item.encrypted_content = seal_reasoning(text) if self._seals_reasoning else None
                yield events.ReasoningTextDone(item.id, index, 0, text)
                yield events.ReasoningPartDone(item.id, index, 0, reasoning_text)
                yield events.ContentPartDone(item.id, index, 0, reasoning_text)
                yield events.OutputItemDone(index, item)
            case FunctionCallItem():
                item.arguments, item.status = text, status
                yield events.FunctionCallArgumentsDone(item.id, index, item.name, text)
                yield events.OutputItemDone(index, item)
            case CustomToolCallItem():
                item.input, item.status = custom_input(text), status
                yield events.CustomToolCallInputDelta(item.id, index, item.input)
                yield events.CustomToolCallInputDone(item.id, index, item.input)
                yield events.OutputItemDone(index, item)
            case McpCallItem():
                item.arguments = text
                yield events.McpCallArgumentsDone(item.id, index, text)
                if status != "completed":
                    item.status = status
                    yield events.OutputItemDone(index, item)
            case McpApprovalRequestItem():
                item.arguments = text
                yield events.OutputItemAdded(index, item)
                yield events.OutputItemDone(index, item)
            case BuiltinCallItem():
                item.arguments = text
                yield events.OutputItemAdded(index, public_item(item))
                yield events.ToolProgress(f"response.{item.type}.in_progress", item.id, index)
                if status != "completed":
                    item.status = status
                    yield events.OutputItemDone(index, public_item(item))
