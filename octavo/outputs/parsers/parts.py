"""The parts of a streamed answer: reasoning, content and tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The next piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """The next piece of what is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentBreak(ContentText):
    """Another message for the same reader begins; the text parts the two where they are shown as one."""


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A tool call begins; calls are numbered from 0.

    Attributes:
        call_id: the id that the model gave, where its format has ids.
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of a call's arguments; all of a call's pieces together are a JSON object."""

    index: int
    text: str


AnswerPart = ReasoningText | ContentText | ToolCallBegin | ToolCallArguments
