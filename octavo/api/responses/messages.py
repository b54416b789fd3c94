"""Converts Responses API items to chat-template messages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.api.responses.items import CALL_TYPES, Item, called_name, is_builtin_call, reasoning_of, text_of
from octavo.errors import InvalidRequestError

Message = dict[str, Any]
VisibleName = Callable[[str, str], str]
"""From an MCP server's label and its tool's name to what the model calls it."""


@dataclass(slots=True)
class _Turn:
    """Consecutive items of the assistant, which become one message."""

    reasoning_text: str = ""
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # id, name, arguments
    outputs: list[Message] = field(default_factory=list)  # of calls that the server carried out

    @property
    def is_empty(self) -> bool:
        return not (self.reasoning_text or self.texts or self.calls)


def to_messages(
    items: Sequence[Item],
    *,
    instructions: str | None = None,
    previous: Iterable[Mapping[str, Any]] = (),
    visible_name: VisibleName = lambda label, name: name,
) -> list[Message]:
    """The conversation as messages.

    Args:
        previous: messages in front of those of the items.
        visible_name: what the model calls an MCP server's tool.
    """
    writer = _Writer(items, visible_name)
    for item in items:
        writer.add_item(item)
    writer.flush()
    messages = [*[dict(message) for message in previous], *writer.messages]
    return _with_instructions(messages, instructions)


class _Writer:
    def __init__(self, items: Sequence[Item], visible_name: VisibleName) -> None:
        self.messages: list[Message] = []
        self._visible_name = visible_name
        self._turn = _Turn()
        self._names = {item["call_id"]: called_name(item) for item in items if item["type"] in CALL_TYPES}
        self._requests = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}

    def add_item(self, item: Item) -> None:
        """Take the next item."""
        match item["type"]:
            case "message" if item["role"] == "assistant":
                if self._turn.calls:
                    self.flush()
                self._turn.texts.append(text_of(item["content"]))
            case "message":
                self.flush()
                self.messages.append({"role": item["role"], "content": text_of(item["content"])})
            case "reasoning":
                if self._turn.texts or self._turn.calls:
                    self.flush()
                self._turn.reasoning_text += reasoning_of(item)
            case "function_call":
                self._turn.calls.append((item["call_id"], called_name(item), item["arguments"]))
            case "custom_tool_call":
                arguments = msgspec.json.encode({"input": item["input"].encode("utf-8", "replace").decode()}).decode()
                self._turn.calls.append((item["call_id"], called_name(item), arguments))
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item)
            case "mcp_call":
                self._add_mcp_call(item)
            case "mcp_approval_response" if not item["approve"]:
                self._add_denied(item)
            case _ if is_builtin_call(item):
                self._turn.calls.append((item["id"], item["name"], item["arguments"]))
                self._turn.outputs.append(_tool_message(item["id"], item["name"], item.get("output") or ""))

    def flush(self) -> None:
        """The assistant's turn is over."""
        turn, self._turn = self._turn, _Turn()
        if turn.is_empty:
            return
        message: Message = {"role": "assistant", "content": "\n".join(turn.texts)}
        if turn.reasoning_text:
            message["reasoning_content"] = message["reasoning"] = turn.reasoning_text
        if turn.calls:
            message["tool_calls"] = [_tool_call(*call) for call in turn.calls]
        self.messages += [message, *turn.outputs]

    def _add_output(self, item: Item) -> None:
        call_id = item["call_id"]
        if call_id not in self._names:
            raise InvalidRequestError(f"input: there is no call with the call_id {call_id[:80]!r}.", "input")
        self.flush()
        self.messages.append(_tool_message(call_id, self._names[call_id], text_of(item["output"])))

    def _add_mcp_call(self, item: Item) -> None:
        error = item.get("error")
        if item.get("output") is None and error is None:
            return  # it was cut before it was carried out
        name = self._visible_name(item["server_label"], item["name"])
        self._turn.calls.append((item["id"], name, item["arguments"]))
        text = item["output"] if error is None else failure_text(error)
        self._turn.outputs.append(_tool_message(item["id"], name, text))

    def _add_denied(self, item: Item) -> None:
        request = self._requests.get(item["approval_request_id"])
        if request is None:
            raise InvalidRequestError(
                f"input: there is no mcp_approval_request with the id {item['approval_request_id'][:80]!r}.", "input"
            )
        name = self._visible_name(request["server_label"], request["name"])
        self._turn.calls.append((request["id"], name, request["arguments"]))
        reason = f" Reason: {item['reason']}" if item.get("reason") else ""
        self._turn.outputs.append(_tool_message(request["id"], name, f"The user did not allow this call.{reason}"))


def failure_text(error: str | Mapping[str, Any]) -> str:
    """The tool output for a failed call."""
    if isinstance(error, str):
        return f"Error: {error}"
    content = error.get("content")
    if isinstance(content, list):
        texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
        return "Error: " + "\n".join(texts)
    return f"Error: {error.get('message', 'the call failed')}"


def _tool_message(call_id: str, name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}


def _tool_call(call_id: str, name: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _as_json(arguments)}}


def _as_json(arguments: str) -> str:
    """Arguments that a template can take: what the model got wrong, or did not finish, is shown as a text."""
    try:
        msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return msgspec.json.encode({"arguments": arguments.encode("utf-8", "replace").decode()}).decode()
    return arguments or "{}"


def _with_instructions(messages: list[Message], instructions: str | None) -> list[Message]:
    """Merge instructions into one leading system message: many templates accept only one."""
    texts = [instructions] if instructions else []
    rest: list[Message] = []
    for message in messages:
        is_instruction = message.get("role") in ("system", "developer") and isinstance(message.get("content"), str)
        if is_instruction and not rest:
            texts.append(message["content"])
        elif is_instruction:
            rest.append({**message, "role": "system"})
        else:
            rest.append(message)
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def cut_points(messages: Sequence[Message]) -> list[int]:
    """Where a conversation may begin if its beginning must go: at each user's message but the first, oldest first."""
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    return starts[1:]


def without_beginning(messages: Sequence[Message], start: int) -> list[Message]:
    """The messages from ``start`` on; instructions stay."""
    instructions = [message for message in messages[:start] if message.get("role") in ("system", "developer")]
    return [*instructions, *messages[start:]]
