"""Responses API items: input items from clients and output items."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, ValidationError

from octavo.api.logprobs import ChatTokenLogprob
from octavo.api.request_body import Objects, RequestPart
from octavo.api.responses.protocol import MAX_TOOLS
from octavo.errors import InvalidRequestError

Status = Literal["in_progress", "completed", "incomplete"]
Item = dict[str, Any]
"""An item of the input, checked: it has a type, and the fields of that type are of the right kinds."""

MAX_ITEMS = 1 << 14
_LONGEST_ESCAPE = 12
_REASONING_MARK = "octavo-reasoning-1:"


class InputMessage(RequestPart):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Objects


class InputCall(RequestPart):
    call_id: str | None = None
    name: str
    arguments: str
    namespace: str | None = None


class InputCustomCall(RequestPart):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class InputCallOutput(RequestPart):
    call_id: str
    output: str | Objects


class InputReasoning(RequestPart):
    summary: Objects | None = None
    content: Objects | None = None
    encrypted_content: str | None = None


class InputMcpList(RequestPart):
    server_label: str
    tools: Annotated[Objects, Field(max_length=MAX_TOOLS)]


class InputMcpCall(RequestPart):
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | dict[str, Any] | None = None
    approval_request_id: str | None = None


class InputApprovalRequest(RequestPart):
    id: str
    server_label: str
    name: str
    arguments: str


class InputApproval(RequestPart):
    approval_request_id: str
    approve: bool
    reason: str | None = None


class InputReference(RequestPart):
    id: str


class InputBuiltinCall(RequestPart):
    """A built-in tool call; one made by another server may lack a name, arguments or output."""

    name: str | None = None
    arguments: str | None = None
    output: str | None = None


_MODELS: dict[str, type[RequestPart]] = {
    "message": InputMessage,
    "function_call": InputCall,
    "function_call_output": InputCallOutput,
    "custom_tool_call": InputCustomCall,
    "custom_tool_call_output": InputCallOutput,
    "reasoning": InputReasoning,
    "mcp_list_tools": InputMcpList,
    "mcp_call": InputMcpCall,
    "mcp_approval_request": InputApprovalRequest,
    "mcp_approval_response": InputApproval,
    "item_reference": InputReference,
    "web_search_call": InputBuiltinCall,
    "file_search_call": InputBuiltinCall,
    "code_interpreter_call": InputBuiltinCall,
}
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
CALL_TYPES = ("function_call", "custom_tool_call")
"""Calls that the client carries out."""


def parse_items(given: str | list[dict[str, Any]], id_tail: str) -> list[Item]:
    """The input's items, each checked and with an id.

    Args:
        id_tail: makes the ids that are missing unique.
    """
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    if len(given) > MAX_ITEMS:
        raise InvalidRequestError(f"input takes at most {MAX_ITEMS} items, got {len(given)}.", "input")
    return [_parse_item(f"input[{index}]", item, f"{id_tail}i{index}") for index, item in enumerate(given)]


def _parse_item(where: str, item: dict[str, Any], id_tail: str) -> Item:
    kind = item.get("type", "message" if "role" in item else "item_reference" if set(item) == {"id"} else None)
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None and is_builtin_call(item):
        model = InputBuiltinCall
    if model is None:
        known = ", ".join(_MODELS)
        raise InvalidRequestError(f"{where} is of type {short(kind)}; this server takes {known}.", "input")
    validate_item(where, model, item)
    given_id = item.get("id")
    if given_id is not None and (not isinstance(given_id, str) or not 0 < len(given_id) <= 256):
        raise InvalidRequestError(f"{where}.id must be a string of 1 to 256 characters.", "input")
    checked = {**item, "type": kind, "id": given_id or f"{_PREFIXES.get(str(kind), 'item')}_{id_tail}"}
    if model is InputMessage:
        is_answer = item["role"] == "assistant"
        checked["content"] = _parse_content(f"{where}.content", item["content"], is_answer)
        checked["status"] = "completed"
    elif model is InputCallOutput and not isinstance(item["output"], str):
        checked["output"] = _parse_content(f"{where}.output", item["output"], False)
    elif model is InputReasoning:
        checked["summary"] = item.get("summary") or []
        for name in ("content", "summary"):
            for place, part in enumerate(item.get(name) or ()):
                _need_text(f"{where}.{name}[{place}]", part)
    elif model is InputMcpList:
        for place, tool in enumerate(item["tools"]):
            if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
                raise InvalidRequestError(f"{where}.tools[{place}] needs a name and an input_schema.", "input")
    elif model is InputCall:
        checked["call_id"] = item.get("call_id") or checked["id"]
    return checked


def is_builtin_call(item: Mapping[str, Any]) -> bool:
    """Whether it is a built-in tool call in this server's format."""
    kind = item.get("type")
    return (
        isinstance(kind, str)
        and kind.endswith("_call")
        and kind not in (*CALL_TYPES, "mcp_call")
        and isinstance(item.get("name"), str)
        and isinstance(item.get("arguments"), str)
    )


def _parse_content(where: str, content: str | list[dict[str, Any]], is_answer: bool) -> list[dict[str, Any]]:
    own = "output_text" if is_answer else "input_text"
    if isinstance(content, str):
        content = [{"type": own, "text": content}]
    parts: list[dict[str, Any]] = []
    for place, part in enumerate(content):
        kind = part.get("type", own)
        spot = f"{where}[{place}]"
        if kind == "refusal":
            if not isinstance(part.get("refusal"), str):
                raise InvalidRequestError(f"{spot} has no refusal.", "input")
            parts.append({"type": "refusal", "refusal": part["refusal"]})
        elif kind in ("input_text", "output_text", "text", "summary_text"):
            text = _need_text(spot, part)
            parts.append({"type": own, "text": text, **({"annotations": []} if is_answer else {})})
        elif isinstance(kind, str) and kind.startswith("input_"):
            raise InvalidRequestError(f"{spot} is of type {short(kind)}; this model takes text only.", "input")
        else:
            raise InvalidRequestError(
                f"{spot} is of type {short(kind)}; the supported types are input_text and output_text.", "input"
            )
    return parts


def _need_text(where: str, part: dict[str, Any]) -> str:
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where} has no text.", "input")
    return text


def validate_item(where: str, model: type[RequestPart], value: object, param: str = "input") -> Any:
    """``value`` as ``model``."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        spot = ".".join([where, *(str(part) for part in first["loc"][:4])])
        raise InvalidRequestError(f"{spot}: {first['msg']}.", param) from None


def short(value: object) -> str:
    """A value of a client in a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def text_of(content: object) -> str:
    """The text of a checked message's or output's content."""
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in content)


def reasoning_of(item: Mapping[str, Any]) -> str:
    """The text of a reasoning item, from its content or from this server's ``encrypted_content``."""
    if item.get("content"):
        return "".join(part["text"] for part in item["content"])
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and sealed.startswith(_REASONING_MARK):
        try:
            return base64.b64decode(sealed[len(_REASONING_MARK) :], validate=True).decode()
        except (binascii.Error, ValueError):
            return ""
    return "\n".join(part["text"] for part in item.get("summary") or ())


def custom_input(arguments: str) -> str:
    """The text for a custom tool, which the model writes as a function's only argument; the answer may be cut in it."""
    # The cut may fall within an escaped character, which may be a surrogate pair.
    cut = (f'{arguments[: len(arguments) - num]}"}}' for num in range(_LONGEST_ESCAPE))
    for text in (arguments, *cut):
        try:
            return msgspec.json.decode(text, type=_CustomArguments).input
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue
    return ""


def called_name(item: Mapping[str, Any]) -> str:
    """What the model calls the client's tool that a call is of."""
    return qualified_name(item["namespace"], item["name"]) if item.get("namespace") else str(item["name"])


def qualified_name(namespace: str, name: str) -> str:
    """What the model calls a tool of a namespace."""
    return f"{namespace}__{name}"


def seal_reasoning(text: str) -> str:
    """Reasoning text as ``encrypted_content``, which stateless clients send back.

    It is encoded, not encrypted: the same text is in the item's content.
    """
    return _REASONING_MARK + base64.b64encode(text.encode("utf-8", "replace")).decode()


class _CustomArguments(msgspec.Struct):
    input: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[ChatTokenLogprob] = []


class ReasoningPart(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    content: list[ReasoningPart]
    summary: list[Any] = []
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, which takes text, for the client to carry out."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class McpToolInfo(msgspec.Struct):
    name: str
    input_schema: Any
    description: str | None = None
    annotations: Any = None


class McpListToolsItem(msgspec.Struct, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[McpToolInfo]
    error: str | None = None


class McpCallItem(msgspec.Struct, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool; ``error`` is one of the protocol's error objects."""

    id: str
    status: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: dict[str, Any] | None = None
    approval_request_id: str | None = None


class McpApprovalRequestItem(msgspec.Struct, tag_field="type", tag="mcp_approval_request"):
    id: str
    server_label: str
    name: str
    arguments: str


class BuiltinCallItem(msgspec.Struct):
    """A built-in tool call.

    Attributes:
        type: such as ``web_search_call``.
        fields: further fields of the type, as its hook gives them.
    """

    type: str
    id: str
    status: str
    name: str
    arguments: str
    output: str | None = None
    fields: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        """As clients see it."""
        own = {name: getattr(self, name) for name in ("type", "id", "status", "name", "arguments", "output")}
        return {**self.fields, **own}


_ToolItem = FunctionCallItem | CustomToolCallItem | McpListToolsItem | McpCallItem | McpApprovalRequestItem
OutputItem = MessageItem | ReasoningItem | _ToolItem | BuiltinCallItem
PublicItem = MessageItem | ReasoningItem | _ToolItem | dict[str, Any]


def public_item(item: OutputItem) -> PublicItem:
    """An item as clients see it."""
    return item.as_dict() if isinstance(item, BuiltinCallItem) else item


def as_input(items: Iterable[OutputItem]) -> list[Item]:
    """Items of an answer as items of the next conversation, in which log-probabilities mean nothing."""
    return [msgspec.to_builtins(public_item(_without_logprobs(item))) for item in items]


def _without_logprobs(item: OutputItem) -> OutputItem:
    if not isinstance(item, MessageItem) or not any(part.logprobs for part in item.content):
        return item
    content = [msgspec.structs.replace(part, logprobs=[]) for part in item.content]
    return msgspec.structs.replace(item, content=content)
