"""JSON read as it comes: values passed on as the model wrote them, strings decoded.

Values follow RFC 8259, but for one thing that models get wrong and that has one meaning only: a line break or another
control character that stands bare in a string is passed on escaped.
"""

import json
import re
import sys

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.reader import AnswerReader, Give, MalformedCallError, Reading

MAX_DEPTH = 128
"""Objects and lists within each other; readers of JSON give up at a depth not far beyond."""

_SPACE = re.compile(r"[ \t\n\r]+")
_STRING_RUN = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NUMBER_RUN = re.compile(r"[-+.0-9eE]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERALS = TagSet(("true", "false", "null"))
_MAX_NUMBER_LENGTH = 1024
_CLOSERS = {"{": "}", "[": "]"}


def pass_value(reader: AnswerReader, give: Give) -> Reading[None]:
    """Pass on one value, and white space before it; what is well-formed of a malformed one has been passed on."""
    yield from _pass_tokens(reader, give, [], "value")


def pass_rest_of_object(reader: AnswerReader, give: Give) -> Reading[None]:
    """Pass on the rest of an object of which a key has been read."""
    yield from _pass_tokens(reader, give, ["{"], "colon")


def _pass_tokens(reader: AnswerReader, give: Give, opened: list[str], expected: str) -> Reading[None]:
    while True:
        character = yield from _pass_space(reader, give)
        if expected in ("value", "value or close"):
            if character == "]" and expected == "value or close":
                give(reader.take_chars(1))
                opened.pop()
                expected = "comma or close"
            elif character and character in "{[":
                if len(opened) >= MAX_DEPTH:
                    raise MalformedCallError
                opened.append(character)
                give(reader.take_chars(1))
                expected = "key or close" if character == "{" else "value or close"
                continue
            else:
                yield from _pass_scalar(reader, character, give)
                expected = "comma or close"
        elif expected == "colon":
            yield from _pass_character(reader, ":", give)
            expected = "value"
            continue
        elif character == '"' and expected in ("key", "key or close"):
            yield from pass_string(reader, give)
            expected = "colon"
            continue
        elif character == "," and expected == "comma or close":
            give(reader.take_chars(1))
            expected = "key" if opened[-1] == "{" else "value"
            continue
        elif expected != "key" and character == _CLOSERS[opened[-1]]:
            give(reader.take_chars(1))
            opened.pop()
            expected = "comma or close"
        else:
            raise MalformedCallError
        if not opened:
            return


def _pass_space(reader: AnswerReader, give: Give) -> Reading[str]:
    while True:
        space = reader.take_run(_SPACE)
        if space:
            give(space)
        character = yield from reader.peek()
        if not character or character not in " \t\n\r":
            return character


def _pass_character(reader: AnswerReader, character: str, give: Give) -> Reading[None]:
    yield from reader.expect(character)
    give(character)


def _pass_scalar(reader: AnswerReader, first: str, give: Give) -> Reading[None]:
    if first == '"':
        yield from pass_string(reader, give)
    elif first and first in "-0123456789":
        yield from _pass_number(reader, give)
    else:
        literal = yield from reader.take_tag(_LITERALS)
        if not literal:
            raise MalformedCallError
        give(literal)


def _pass_number(reader: AnswerReader, give: Give) -> Reading[None]:
    number = yield from reader.read_word(_NUMBER_RUN, _MAX_NUMBER_LENGTH, give)
    give(number)
    if _NUMBER.fullmatch(number) is None:
        raise MalformedCallError


def pass_string(reader: AnswerReader, give: Give, max_length: int = sys.maxsize) -> Reading[None]:
    """Pass on one string with its quotes.

    Raises:
        MalformedCallError: it is no JSON string, is longer than ``max_length`` as it is written, or ends early.
    """
    yield from _pass_character(reader, '"', give)
    while True:
        run = reader.take_run(_STRING_RUN, max_length)
        max_length -= len(run)
        if run:
            give(run)
        character = yield from reader.peek()
        if character == '"':
            give(reader.take_chars(1))
            return
        length = len((yield from _peek_escape(reader))) if character == "\\" else 1
        if not character or length > max_length:
            raise MalformedCallError
        if character < " ":
            give(json.dumps(reader.take_chars(1))[1:-1])
            max_length -= 1


def _peek_escape(reader: AnswerReader) -> Reading[str]:
    """The escape sequence that comes next, once it has come as a whole."""
    escape = yield from reader.peek(2)
    if escape == "\\u":
        escape = yield from reader.peek(6)
    if _ESCAPE.fullmatch(escape) is None:
        raise MalformedCallError
    return escape


def read_string(reader: AnswerReader, max_length: int) -> Reading[str]:
    """One string, decoded.

    Raises:
        MalformedCallError: it is none, is longer than ``max_length`` as it is written, or is no Unicode text.
    """
    pieces: list[str] = []
    yield from pass_string(reader, pieces.append, max_length)
    text: str = json.loads("".join(pieces))
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise MalformedCallError
    return text


def pass_decoded_string(reader: AnswerReader, give: Give) -> Reading[None]:
    """Pass on what one string says, as it comes; halves of surrogate pairs become U+FFFD."""
    half = ""

    def decode(piece: str) -> None:
        nonlocal half
        if piece == '"':
            piece = ""
            final = True
        else:
            final = False
        text = half + json.loads(f'"{piece}"')
        half = ""
        if not final and text and "\ud800" <= text[-1] <= "\udbff":
            text, half = text[:-1], text[-1]
        give(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    yield from pass_string(reader, decode)
