"""Feeds a text to a parser in pieces, and cuts texts."""

from itertools import pairwise

from hypothesis import strategies as st

from octavo.outputs.parsers.base import AnswerPart, ContentText, ReasoningText, ToolCallArguments, ToolCallBegin


def run(parser, pieces):
    """All parts of an answer that comes in these pieces, neighbours joined."""
    parts = []
    for piece in pieces:
        parts += parser.parse_delta(piece)
    return joined(parts + parser.flush())


def cut(text, places):
    """The text cut at these places."""
    edges = sorted({0, len(text), *(place for place in places if place <= len(text))})
    return [text[start:end] for start, end in pairwise(edges)]


def places():
    """Where to cut."""
    return st.lists(st.integers(0, 400), max_size=12)


def check_cuts(start, text, cuts):
    """Whole, by characters and in pieces, the parts are the same; returns them."""
    whole = run(start(), [text])
    assert run(start(), list(text)) == whole
    assert run(start(), cut(text, cuts)) == whole
    return whole


def texts(parts):
    """The thought and the content that parts hold."""
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningText))
    content = "".join(part.text for part in parts if isinstance(part, ContentText))
    return thought, content


def joined(parts: list[AnswerPart]) -> list[AnswerPart]:
    """The same parts with neighbours of one kind made one, and empty ones left out."""
    merged: list[AnswerPart] = []
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
