"""Conversations in the form that gpt-oss's chat template takes.

It knows reasoning as ``thinking``, one tool call per message with its result right after it, no preamble before a
call, and instructions in the first message only. What else a conversation holds it leaves out without a word, or
refuses.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]
_ASSISTANT, _CHANNEL = "assistant", "<|channel|>"
_REWRITTEN = ("thinking", "reasoning", "reasoning_content", "tool_calls")
# The model was trained with low, medium and high.
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


def is_harmony_template(template: str) -> bool:
    """Whether a chat template writes Harmony messages."""
    return _CHANNEL in template and "<|call|>" in template


def harmony_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation as the template takes it.

    Args:
        messages: each with a role and a text as ``content``.
    """
    instructions: list[str] = []
    # A call and its results are one group, and so is any other message.
    groups: list[list[Message]] = []
    calls: dict[str, list[Message]] = {}
    for message in messages:
        role = message["role"]
        if role in ("system", "developer"):
            instructions.append(message["content"])
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
    text = "\n\n".join(part for part in instructions if part)
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
    reasoning_text = message.get("thinking") or message.get("reasoning_content")
    reasoning_text = reasoning_text if isinstance(reasoning_text, str) else ""
    calls = message.get("tool_calls")
    if not calls:
        return [{**rest, "thinking": reasoning_text} if reasoning_text else rest]
    preamble = message["content"]
    if _CHANNEL in preamble:
        # The template decides whether text may appear there.
        reasoning_text, preamble = "\n".join(text for text in (reasoning_text, preamble) if text), ""
    written = [{**rest, "content": "", "tool_calls": [call]} for call in calls]
    written[0]["content"] = preamble
    if reasoning_text:
        written[0]["thinking"] = reasoning_text
    return written


class Preambles:
    """The model's text before its calls, kept on the channel ``commentary``.

    The template would write it as reasoning, and leave it out with the reasoning of earlier turns. So each is set
    aside, the name of its call is marked, and where the mark shows up in the text, the preamble is put in front of the
    call.
    """

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._texts: list[str] = []

    def set_aside(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without preambles, for the template.

        Args:
            messages: as :func:`harmony_messages` gives them.
        """
        return [self._marked(message) if "tool_calls" in message else message for message in messages]

    def restore(self, text: str) -> str:
        """The template's text with the preambles."""
        if not self._texts:
            return text
        call = re.compile(rf"<\|start\|>{_ASSISTANT}(?:(?!<\|start\|>).)*?{self._mark}(\d+)\.", re.DOTALL)
        text = call.sub(lambda found: self._message(int(found[1])) + found[0], text)
        return re.sub(rf"{self._mark}\d+\.", "", text)

    def _marked(self, message: Message) -> Message:
        call = message["tool_calls"][0]
        function = call.get("function")
        if not message["content"] or not isinstance(function, Mapping):
            return message
        self._texts.append(message["content"])
        name = f"{self._mark}{len(self._texts) - 1}.{function.get('name')}"
        return {**message, "content": "", "tool_calls": [{**call, "function": {**function, "name": name}}]}

    def _message(self, index: int) -> str:
        return f"<|start|>{_ASSISTANT}{_CHANNEL}commentary<|message|>{self._texts[index]}<|end|>"


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
