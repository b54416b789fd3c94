"""Tools, tool calls and their results as text, for chat templates that have no place for them.

Such templates silently omit them, so the model would see neither its tools nor its earlier calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.outputs.parsers.tools.call_text import CallText

Message = dict[str, Any]


def calls_as_text(messages: Sequence[Mapping[str, Any]], call_text: CallText) -> list[Message]:
    """The conversation with tool calls in the assistant's texts, and their results in the user's.

    Args:
        messages: in the form that the template takes, arguments of calls as objects.
    """
    converted: list[Message] = []
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            result = _wrapped(message["content"])
            if was_result:
                converted[-1]["content"] = _joined(converted[-1]["content"], result)
            else:
                converted.append({"role": "user", "content": result})
        elif message.get("tool_calls"):
            calls = [(call["function"].get("name"), call["function"]["arguments"]) for call in message["tool_calls"]]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            converted.append({**rest, "content": _joined(message["content"], call_text.write(calls))})
        else:
            converted.append(dict(message))
        was_result = is_result
    return converted


def with_description(messages: Sequence[Message], text: str, *, takes_system: bool) -> list[Message]:
    """The conversation with a description of tools in front.

    Args:
        takes_system: the template shows system messages; else the first user message takes the description.
    """
    described = [dict(message) for message in messages]
    role = "system" if takes_system else "user"
    place = next((index for index, message in enumerate(described) if message["role"] == role), None)
    if place is None:
        described.insert(0, {"role": role, "content": text})
    elif takes_system:
        described[place]["content"] = _joined(described[place]["content"], text, "\n\n")
    else:
        described[place]["content"] = _joined(text, described[place]["content"], "\n\n")
    return described


def contents_as_parts(messages: Sequence[Message]) -> list[Message]:
    """The conversation for a template that loops over contents."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _wrapped(content: str | list[Any]) -> str:
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return f"<tool_response>\n{text}\n</tool_response>"


def _joined(first: Any, second: Any, between: str = "\n") -> Any:
    """Two contents, texts or lists of parts, as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}" if first and second else first or second
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)
