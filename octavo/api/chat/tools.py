"""Parses ``tools`` and ``tool_choice`` of OpenAI's chat protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.api.chat.conversation import ToolChoice
from octavo.errors import InvalidRequestError
from octavo.outputs.parsers.base import Tool

MAX_TOOLS = 1024
MAX_NAME_LENGTH = 256
MAX_SCHEMA_DEPTH = 64


def parse_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """What the model may call."""
    if not tools:
        return ()
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools takes at most {MAX_TOOLS} tools, got {len(tools)}.", "tools")
    parsed = tuple(_parse_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    seen: set[str] = set()
    for tool in parsed:
        if tool.name in seen:
            raise InvalidRequestError(f"tools names {tool.name!r} twice.", "tools")
        seen.add(tool.name)
    return parsed


def _parse_tool(where: str, tool: Mapping[str, Any]) -> Tool:
    kind = tool.get("type", "function")
    if kind != "function":
        raise InvalidRequestError(f"{where} is of type {kind!r}; tools of this route are functions.", f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where} has no function.", f"{where}.function")
    return parse_function(f"{where}.function", function)


def parse_function(where: str, function: Mapping[str, Any], schema_key: str = "parameters") -> Tool:
    """One function."""
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidRequestError(
            f"{where}.name must be a string of at most {MAX_NAME_LENGTH} characters.", f"{where}.name"
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"{where}.description must be a string.", f"{where}.description")
    parameters = function.get(schema_key)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError(f"{where}.{schema_key} must be a JSON schema.", f"{where}.{schema_key}")
    if _is_deeper(parameters, MAX_SCHEMA_DEPTH):
        raise InvalidRequestError(
            f"{where}.{schema_key} is nested deeper than {MAX_SCHEMA_DEPTH} levels.", f"{where}.{schema_key}"
        )
    return Tool(name, parameters, description, is_strict=bool(function.get("strict")))


def allowed_tools(
    tools: tuple[Tool, ...], choice: str | Mapping[str, Any] | None
) -> tuple[tuple[Tool, ...], str | Mapping[str, Any] | None]:
    """The tools among which a choice leaves the model free, and what is left of the choice then."""
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}}:
            names = {_allowed_name(tool) for tool in allowed}
            unknown = names - {tool.name for tool in tools}
            if not names or unknown:
                named = ", ".join(sorted(map(repr, unknown)))[:200] or "none"
                raise InvalidRequestError(f"tool_choice allows tools that are not there: {named}.", "tool_choice")
            return tuple(tool for tool in tools if tool.name in names), mode
        case {"type": "allowed_tools"}:
            raise InvalidRequestError(
                "tool_choice: allowed_tools must have a mode, 'auto' or 'required', and tools.",
                "tool_choice",
            )
        case _:
            return tools, choice


def _allowed_name(tool: object) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
        case _:
            raise InvalidRequestError(
                'tool_choice: each allowed tool must be {"type": "function", "function": {"name": …}}.', "tool_choice"
            )


def parse_tool_choice(choice: str | Mapping[str, Any] | None, *, has_tools: bool) -> tuple[ToolChoice, str | None]:
    """How the model is to choose, and the name of the tool it must call."""
    match choice:
        case None:
            return ("auto" if has_tools else "none"), None
        case "none" | "auto" | "required":
            return choice, None
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return "named", name
        case _:
            raise InvalidRequestError(
                "tool_choice must be 'none', 'auto', 'required' or "
                '{"type": "function", "function": {"name": …}}.',
                "tool_choice",
            )


def _is_deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return False
    return True
