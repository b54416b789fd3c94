"""Conversations in the form that gpt-oss's chat template takes.

It knows thoughts as ``thinking``, one call a message with its result right behind it, either a thought or a preamble
before a call, and instructions in the first message only. What else a conversation holds it leaves out without a word,
or refuses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]
_REWRITTEN = ("thinking", "reasoning", "reasoning_content", "tool_calls")
# The model was trained with low, medium and high.
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


def is_harmony_template(template: str) -> bool:
    """Whether a chat template writes Harmony messages."""
    return "<|channel|>" in template and "<|call|>" in template


def harmony_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation as the template takes it.

    Args:
        messages: each with a role and a text as ``content``.
    """
    told: list[str] = []
    # A call and its results are one group, and so is any other message.
    groups: list[list[Message]] = []
    calls: dict[str, list[Message]] = {}
    for message in messages:
        role = message["role"]
        if role in ("system", "developer"):
            told.append(message["content"])
        elif role == "assistant":
            for said in _assistant_messages(message):
                groups.append([said])
                if "tool_calls" in said:
                    calls[_id(said["tool_calls"][0].get("id"))] = groups[-1]
        elif role == "tool" and groups:
            call_id = _id(message.get("tool_call_id"))
            group = calls.get(call_id) if call_id else None
            (group or _unanswered(groups)).append(dict(message))
        else:
            groups.append([dict(message)])
    text = "\n\n".join(part for part in told if part)
    front: list[Message] = [{"role": "developer", "content": text}] if text else []
    return front + [said for group in groups for said in group]


def _id(given: object) -> str:
    return given if isinstance(given, str) else ""


def _unanswered(groups: Sequence[list[Message]]) -> list[Message]:
    """The first of the last calls in a row that has no result; the last group if there is none."""
    found = groups[-1]
    for group in reversed(groups):
        if "tool_calls" not in group[0]:
            break
        if len(group) == 1:
            found = group
    return found


def _assistant_messages(message: Mapping[str, Any]) -> list[Message]:
    rest = {key: value for key, value in message.items() if key not in _REWRITTEN}
    thought = message.get("thinking") or message.get("reasoning_content")
    thought = thought if isinstance(thought, str) else ""
    calls = message.get("tool_calls")
    if not calls:
        return [{**rest, "thinking": thought} if thought else rest]
    # The template writes a thought and a preamble alike.
    before = "\n".join(text for text in (thought, message["content"]) if text)
    written = [{**rest, "content": "", "tool_calls": [call]} for call in calls]
    if before:
        written[0]["thinking"] = before
    return written


def harmony_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the template takes them: each must be described."""
    return [_described(tool) for tool in tools]


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    return {**tool, "function": {**function, "description": function.get("description") or ""}}


def harmony_effort(effort: object) -> object:
    """The nearest ``reasoning_effort`` that the model knows."""
    return _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
