"""The tools of a conversation, after its messages have added and removed some."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from octavo.api.anthropic.content import TOOL_CHANGES
from octavo.api.anthropic.protocol import CountTokensRequest, ToolParam
from octavo.api.chat.tools import MAX_TOOLS, parse_function
from octavo.errors import InvalidRequestError
from octavo.outputs.parsers.base import Tool


def offered_tools(body: CountTokensRequest) -> list[Tool]:
    """The tools that the model may call at the conversation's end.

    Those that wait to be found (``defer_loading``) are left out until a message refers to them.
    """
    tools: dict[str, Tool] = {}
    loaded: set[str] = set()
    for index, param in enumerate(body.tools or ()):
        if param.name in tools:
            raise InvalidRequestError(f"tools.{index}: there are two tools named {param.name!r}.", "tools")
        tools[param.name] = _tool(f"tools.{index}", param)
        if not param.defer_loading:
            loaded.add(param.name)
    for where, kind, change in _changes(body):
        name = change.get("name") or change.get("tool_name")
        if change.get("type") == "tool_definition":
            tool = _defined(where, change.get("definition"))
            tools[tool.name] = tool
            loaded.add(tool.name)
        elif not isinstance(name, str):
            raise InvalidRequestError(f"{where}: must name a tool.", "messages")
        elif kind != "tool_result" and name not in tools:
            raise InvalidRequestError(
                f"{where}: {kind} refers to the tool {name[:64]!r}, which is not declared in tools.", "messages"
            )
        elif kind == "tool_removal":
            loaded.discard(name)
        else:
            loaded.add(name)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"A conversation takes at most {MAX_TOOLS} tools, got {len(tools)}.", "messages")
    return [tool for name, tool in tools.items() if name in loaded]


def _changes(body: CountTokensRequest) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """What loads, defines or removes a tool, in order: where it appears, the type of its block, and the tool."""
    for index, message in enumerate(body.messages):
        if message.role == "assistant" or isinstance(message.content, str):
            continue
        for place, block in enumerate(message.content):
            where = f"messages.{index}.content.{place}"
            kind, tool, content = block.get("type"), block.get("tool"), block.get("content")
            if kind == "tool_result" and isinstance(content, list):
                for part in content:
                    if isinstance(part, dict) and part.get("type") == "tool_reference":
                        yield where, kind, part
            elif kind in TOOL_CHANGES:
                if not isinstance(tool, dict):
                    raise InvalidRequestError(f"{where}.tool: must be an object with a type.", "messages")
                known = ("tool_reference", "tool_definition") if kind == "tool_addition" else ("tool_reference",)
                if tool.get("type") not in known:
                    raise InvalidRequestError(
                        f"{where}.tool: {kind} only accepts a {' or a '.join(known)}, got type "
                        f"{str(tool.get('type'))[:40]!r}; this route does not call MCP servers.",
                        "messages",
                    )
                yield where, kind, tool


def _tool(where: str, param: ToolParam) -> Tool:
    if param.input_schema is None:
        kind = f" of type {param.type!r}" if param.type else ""
        raise InvalidRequestError(
            f"{where}: the tool{kind} has no input_schema; tools that run on Anthropic's servers, or that its models "
            "know by heart, do not exist here.",
            "tools",
        )
    if param.input_schema.get("type", "object") != "object":
        raise InvalidRequestError(
            f"{where}.input_schema: its type must be 'object', since inputs are objects.", "tools"
        )
    return parse_function(where, param.model_dump(), "input_schema")


def _defined(where: str, definition: object) -> Tool:
    try:
        return _tool(where, ToolParam.model_validate(definition))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("tool", "definition", *first["loc"])))
        raise InvalidRequestError(f"{where}.{place}: {first['msg']}.", "messages") from None
