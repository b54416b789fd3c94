"""gpt-oss's answers: Harmony messages, each on a channel and some addressed to a tool.

Parsed from text that includes the special tokens, so that only the model's own tokenizer is needed::

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The format: https://cookbook.openai.com/articles/openai-harmony
"""

import re
from collections.abc import Sequence

from octavo.outputs.parsers.base import AnswerPart, PromptEnd, ReasoningText, Tool, ToolParser
from octavo.outputs.parsers.messages import BodyKind, MessageBody, MessageMachine, MessageReasoningParser, MessageTags

CHANNEL, CONSTRAIN, MESSAGE = "<|channel|>", "<|constrain|>", "<|message|>"
FINAL = f"{CHANNEL}final"
FUNCTIONS = "functions."
# What a header may hold before a body whose tag the model forgot.
_HEADER = re.compile(
    r"\s*(?:assistant\b(?::\S+)?)?\s*(?:to=[^\s<]+\s*)?(?:<\|channel\|>\s*[^\s<]*\s*)*(?:to=[^\s<]+\s*)?"
    r"(?:<\|constrain\|>\s*[^\s<{]*\s*|(?:json|code)(?![^\s{])\s*)?"
)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)|(?<=\s)((?:functions|browser|container)\.[^\s<]+|python(?![^\s<]))")
_ASSISTANT = "assistant"
# Parties of a conversation; what is addressed to anybody else is a call.
_READERS = frozenset({"user", _ASSISTANT, "all"})
_OTHER_ROLES = frozenset({"user", "system", "developer", "tool", "python"})
_TOOL_ROLES = (FUNCTIONS, "browser.", "container.")
_CODE_TOOLS = frozenset({"python"})


class HarmonyMachine(MessageMachine):
    """One answer: analysis is reasoning; final and what commentary says to the reader is content; the rest are calls.

    A call to a built-in tool keeps its whole name, such as ``browser.search``, and a function's loses ``functions.``.
    A message that the model writes in another's name is left out.
    """

    tags = MessageTags(
        start=("<|start|>",),
        inner=(CHANNEL, CONSTRAIN),
        body=(MESSAGE,),
        end=("<|end|>", "<|return|>", "<|call|>"),
        sudden=(CHANNEL,),
        roles=(_ASSISTANT,),
    )

    def read_header(self, header: str, body_tag: str) -> MessageBody:
        author, _, channel = header.partition(CHANNEL)
        channel = channel.partition(CONSTRAIN)[0].rpartition(CHANNEL)[2].strip()
        role = author.partition(CONSTRAIN)[0].strip().partition(" ")[0]
        if role in _OTHER_ROLES or role.startswith(_TOOL_ROLES):
            return MessageBody(BodyKind.IGNORED)
        name = _recipient(header)
        if name == _ASSISTANT and role and not role.startswith((_ASSISTANT, "to=")):
            return MessageBody(BodyKind.IGNORED)  # a tool's result
        if name and name not in _READERS:
            return MessageBody(BodyKind.CALL, name.removeprefix(FUNCTIONS) or name, is_code=name in _CODE_TOOLS)
        return MessageBody(BodyKind.REASONING if channel.startswith("analysis") else BodyKind.CONTENT)

    def read_unmarked(self, header: str) -> tuple[MessageBody, int] | None:
        found = _HEADER.match(header)
        start = found.end() if found is not None else 0
        text = header[start:]
        if not text.strip():
            return None
        # A text without a header is content, unless it belongs to another role.
        body = self.read_header(header[:start] or (text.split()[0] if self._header_has_tags else ""), "")
        if body.kind is BodyKind.CALL and not body.is_code and not text.startswith("{"):
            body = MessageBody(BodyKind.CONTENT)
        return body, start


def _recipient(header: str) -> str:
    """A message's recipient, "" if the header has none; the model may omit ``to=`` before a tool's name."""
    found = _RECIPIENT.search(header)
    return "" if found is None else found.group(1) or found.group(2)


class HarmonyReasoningParser(MessageReasoningParser):
    """Reasoning and content of a Harmony answer; its calls are given with them by ``parse_delta_with_calls``."""

    def __init__(self, prompt_end: PromptEnd) -> None:
        super().__init__(HarmonyMachine, prompt_end)

    @property
    def end_tag(self) -> str:
        return FINAL

    @property
    def end_tag_tail(self) -> str:
        return MESSAGE


class HarmonyToolParser(ToolParser):
    """Content and calls of a Harmony answer; the reasoning is dropped because no reasoning parser is set."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._machine = HarmonyMachine()

    def parse_delta(self, text: str) -> list[AnswerPart]:
        return [part for part in self._machine.parse_delta(text) if not isinstance(part, ReasoningText)]

    def flush(self) -> list[AnswerPart]:
        return [part for part in self._machine.flush() if not isinstance(part, ReasoningText)]

    def flush_whole(self) -> list[AnswerPart]:
        return [part for part in self._machine.flush(is_whole=True) if not isinstance(part, ReasoningText)]


class HarmonyFormat:
    """The format as the registry knows it."""

    name = "openai_gptoss"
    end_tags = (f"{FINAL}{MESSAGE}", f"{FINAL} {CONSTRAIN}json{MESSAGE}")

    def start(self, prompt_end: PromptEnd) -> HarmonyReasoningParser:
        """A parser for one answer after this prompt."""
        return HarmonyReasoningParser(prompt_end)
