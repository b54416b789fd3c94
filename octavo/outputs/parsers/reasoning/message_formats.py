"""Message-based formats besides Harmony: Muse and Inkling."""

import re

from octavo.outputs.parsers.base import PromptEnd
from octavo.outputs.parsers.messages import BodyKind, MessageBody, MessageMachine, MessageReasoningParser, MessageTags

_RECIPIENT = re.compile(r"\bto=(\S+)")


class MuseMachine(MessageMachine):
    """``<|start|>assistant to=self<|message|>…<|eom|>`` is reasoning.

    What is said to a tool is content without its header, for a parser of calls.
    """

    tags = MessageTags(start=("<|start|>",), inner=(), body=("<|message|>",), end=("<|eom|>", "<|eot|>"))

    def read_header(self, header: str, body_tag: str) -> MessageBody:
        recipient = _RECIPIENT.search(header)
        if recipient is None or recipient.group(1) == "user":
            return MessageBody(BodyKind.CONTENT)
        if recipient.group(1) == "self":
            return MessageBody(BodyKind.REASONING)
        return MessageBody(BodyKind.RAW)


class InklingMachine(MessageMachine):
    """``<|message_model|><|content_thinking|>…<|end_message|>`` is reasoning; tool calls are passed on unchanged."""

    _KINDS = (
        ("<|content_thinking|>", BodyKind.REASONING),
        ("<|content_text|>", BodyKind.CONTENT),
        ("<|content_invoke_tool_text|>", BodyKind.CONTENT),
        ("<|content_tool_error|>", BodyKind.CONTENT),
        ("<|content_invoke_tool_json|>", BodyKind.RAW),
    )
    tags = MessageTags(
        start=("<|message_model|>",),
        inner=(),
        body=tuple(tag for tag, _ in _KINDS),
        end=("<|end_message|>", "<|content_model_end_sampling|>"),
        sudden=tuple(tag for tag, _ in _KINDS),
        roles=(),
    )

    def read_header(self, header: str, body_tag: str) -> MessageBody:
        kind = dict(self._KINDS)[body_tag]
        return MessageBody(kind, opening=body_tag if kind is BodyKind.RAW else "")


class MessageFormat:
    """A format as the registry knows it."""

    def __init__(self, name: str, machine: type[MessageMachine], end_tags: tuple[str, ...]) -> None:
        self.name = name
        self.end_tags = end_tags
        self._machine = machine

    def start(self, prompt_end: PromptEnd) -> MessageReasoningParser:
        """A parser for one answer after this prompt."""
        return MessageReasoningParser(self._machine, prompt_end)


_MUSE_ENDS = ("to=user<|message|>",)
MESSAGE_FORMATS = (
    MessageFormat("muse", MuseMachine, _MUSE_ENDS),
    MessageFormat("muse_glimmer", MuseMachine, _MUSE_ENDS),
    MessageFormat("musespark1x", MuseMachine, _MUSE_ENDS),
    MessageFormat("inkling", InklingMachine, ("<|content_text|>",)),
)
