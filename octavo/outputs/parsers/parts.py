"""What an answer is made of, piece by piece as it comes: reasoning, content, and calls of tools."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The next piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """The next piece of what is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call of a tool begins; calls are numbered from 0.

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


Part = ReasoningText | ContentText | ToolCallBegin | ToolCallArguments


def joined(parts: list[Part]) -> list[Part]:
    """The same parts with neighbours of one kind made one, and empty ones left out."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, ToolCallBegin):
            merged.append(part)
        elif not part.text:
            continue
        elif isinstance(part, ToolCallArguments):
            if isinstance(last, ToolCallArguments) and last.index == part.index:
                merged[-1] = ToolCallArguments(part.index, last.text + part.text)
            else:
                merged.append(part)
        elif type(last) is type(part):
            merged[-1] = type(part)(last.text + part.text)
        else:
            merged.append(part)
    return merged
