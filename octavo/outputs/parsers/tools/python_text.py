"""Python literals read as they come, and passed on as JSON.

Numbers, strings (of all quotes and escapes, also several in a row), lists, tuples, dictionaries and the three
constants, which may also be written as in JSON; nothing is ever evaluated.
"""

import json
import re
import sys
import unicodedata
from math import isfinite

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.json_text import MAX_DEPTH
from octavo.outputs.parsers.tools.reader import AnswerReader, Give, MalformedCallError, Reading

_QUOTES = TagSet(('"""', "'''", '"', "'"))
_STRING_RUNS = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_WORD_RUN = re.compile(r"[-+.\w]+")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NUMBER_START = frozenset("-+.0123456789")
_CONSTANTS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]+")
_OCTAL = re.compile(r"[0-7]{1,3}")
_MAX_WORD_LENGTH = 1024
_MAX_CHARACTER_NAME_LENGTH = 100


def escaped(text: str) -> str:
    """Text as it appears between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= character <= "\udfff" for character in text))[1:-1]


def pass_literal(reader: AnswerReader, give: Give, depth: int = 0) -> Reading[None]:
    """Pass on one literal as JSON; white space before it is skipped."""
    character = yield from reader.skip_space()
    if not character or depth > MAX_DEPTH:
        raise MalformedCallError
    if character in "\"'":
        yield from _pass_strings(reader, give)
    elif character in "[(":
        yield from _pass_list(reader, give, depth)
    elif character == "{":
        yield from _pass_dictionary(reader, give, depth)
    else:
        yield from _pass_word(reader, give)


def _pass_word(reader: AnswerReader, give: Give, quote: str = "") -> Reading[None]:
    word = yield from reader.read_word(_WORD_RUN, _MAX_WORD_LENGTH, give)
    converted = _as_json(word)
    if converted is None:
        give(word)
        raise MalformedCallError
    give(f"{quote}{converted}{quote}")


def _as_json(word: str) -> str | None:
    """A number or a constant in JSON's spelling, None if it is neither."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _JSON_NUMBER.fullmatch(word) is not None:
        return word
    if word[:1] in _NUMBER_START:
        for convert in (lambda text: int(text, 0), float):
            try:
                number = convert(word)
            except ValueError:
                continue
            if isfinite(number):
                return json.dumps(number)
    return None


def _pass_list(reader: AnswerReader, give: Give, depth: int) -> Reading[None]:
    end = "]" if reader.take_chars(1) == "[" else ")"
    give("[")
    separator = ""
    while (character := (yield from reader.skip_space())) != end:
        if not character:
            raise MalformedCallError
        give(separator)
        separator = ", "
        yield from pass_literal(reader, give, depth + 1)
        yield from _end_item(reader, end)
    reader.take_chars(1)
    give("]")


def _pass_dictionary(reader: AnswerReader, give: Give, depth: int) -> Reading[None]:
    reader.take_chars(1)
    give("{")
    separator = ""
    while (character := (yield from reader.skip_space())) != "}":
        if not character:
            raise MalformedCallError
        give(separator)
        separator = ", "
        if character in "\"'":
            yield from _pass_strings(reader, give)
        else:
            yield from _pass_word(reader, give, '"')
        yield from reader.skip_space()
        yield from reader.expect(":")
        give(": ")
        yield from pass_literal(reader, give, depth + 1)
        yield from _end_item(reader, "}")
    reader.take_chars(1)
    give("}")


def _end_item(reader: AnswerReader, end: str) -> Reading[None]:
    """Read the comma after an item, which only the last one may lack."""
    character = yield from reader.skip_space()
    if character == ",":
        reader.take_chars(1)
    elif character != end:
        raise MalformedCallError


def _pass_strings(reader: AnswerReader, give: Give) -> Reading[None]:
    """Pass on a string together with directly adjacent ones, as in Python's implicit concatenation."""
    give('"')
    while quote := (yield from reader.take_tag(_QUOTES)):
        # An empty string is read as the beginning of three quotes only if the third follows.
        yield from _pass_string_body(reader, quote, give)
        yield from reader.skip_space()
    give('"')


def _pass_string_body(reader: AnswerReader, quote: str, give: Give) -> Reading[None]:
    run_pattern = _STRING_RUNS[quote[0]]
    while True:
        run = reader.take_run(run_pattern)
        if run:
            give(escaped(run))
        character = yield from reader.peek()
        if not character:
            raise MalformedCallError
        if character == "\\":
            give(escaped((yield from _read_escape(reader))))
        elif character == quote[0]:
            if (yield from reader.peek(len(quote))) == quote:
                reader.take_chars(len(quote))
                return
            give(escaped(reader.take_chars(1)))


def _read_escape(reader: AnswerReader) -> Reading[str]:
    """The value of an escape sequence; an unknown one is kept as it is, as in Python."""
    kind = (yield from reader.peek(2))[1:]
    if not kind:
        raise MalformedCallError
    if kind in _HEX_LENGTHS:
        length = 2 + _HEX_LENGTHS[kind]
        escape = yield from reader.peek(length)
        if _HEX.fullmatch(escape[2:]) is None or len(escape) < length or int(escape[2:], 16) > sys.maxunicode:
            raise MalformedCallError
        reader.take_chars(length)
        return chr(int(escape[2:], 16))
    if kind in "01234567":
        match = _OCTAL.match((yield from reader.peek(4)), 1)
        assert match is not None
        return chr(int(reader.take_chars(match.end())[1:], 8))
    if kind == "N":
        return (yield from _read_character_name(reader))
    reader.take_chars(2)
    return _SIMPLE_ESCAPES.get(kind, "\\" + kind)


def _read_character_name(reader: AnswerReader) -> Reading[str]:
    length = 4
    while not (escape := (yield from reader.peek(length))).endswith("}"):
        if len(escape) < length or length > _MAX_CHARACTER_NAME_LENGTH:
            raise MalformedCallError
        length += 1
    try:
        character = unicodedata.lookup(escape[3:-1])
    except KeyError as error:
        raise MalformedCallError from error
    reader.take_chars(length)
    return character
