"""FunctionGemma and Gemma 4: ``call:f{a:1,b:…}``, JSON without quotes around keys and with tags around strings."""

import re
from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import argument_json, quoted
from octavo.outputs.parsers.tools.json_text import MAX_DEPTH
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH, ToolMachine
from octavo.outputs.parsers.tools.python_text import escaped
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_BARE = re.compile(r"[^,{}\[\]<]+")
_KEY = re.compile(r"[^:,{}\[\]<>]+")
_MAX_BARE_LENGTH = 4096
_ANY = frozenset[str]()


class GemmaMachine(ToolMachine):
    """What both share.

    Attributes:
        string_tags: what precedes and follows a string.
    """

    string_tags: ClassVar[TagSet]
    _LITERAL: ClassVar = TagSet(("call:",))

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self._reader.skip_space()
        if not (yield from self._reader.take_tag(self._LITERAL)):
            raise MalformedCallError
        name = yield from self.read_name()
        if (yield from self._reader.skip_space()) != "{":
            raise MalformedCallError
        self.begin_call(name)
        yield from self._read_object(0)
        self.end_arguments()
        self.end_call()

    def _read_value(self, depth: int) -> Reading[None]:
        character = yield from self._reader.skip_space()
        if character and character in "{[" and depth >= MAX_DEPTH:
            raise MalformedCallError
        if character == "{":
            yield from self._read_object(depth + 1)
        elif character == "[":
            yield from self._read_list(depth + 1)
        elif (yield from self._reader.take_tag(self.string_tags)):
            self.give_arguments('"')
            end = yield from self._reader.give_until(self.string_tags, lambda text: self.give_arguments(escaped(text)))
            if not end:
                raise MalformedCallError
            self.give_arguments('"')
        else:
            bare = yield from self._reader.read_word(_BARE, _MAX_BARE_LENGTH, self.give_arguments)
            if not bare.strip() or not (yield from self._reader.peek()):
                self.give_arguments(bare)
                raise MalformedCallError
            self.give_arguments(argument_json(bare.strip(), _ANY))

    def _read_object(self, depth: int) -> Reading[None]:
        self._reader.take_chars(1)
        self.give_arguments("{")
        separator = ""
        while (yield from self._reader.skip_space()) != "}":
            self._reader.record()
            key = yield from self._read_key()
            if (yield from self._reader.skip_space()) != ":":
                raise MalformedCallError
            self._reader.take_chars(1)
            self.give_arguments(f"{separator}{quoted(key)}: ")
            separator = ", "
            yield from self._read_value(depth)
            yield from self._end_item("}")
        self._reader.take_chars(1)
        self.give_arguments("}")

    def _read_key(self) -> Reading[str]:
        if (yield from self._reader.take_tag(self.string_tags)):
            key, _ = yield from self._reader.text_until(self.string_tags, MAX_NAME_LENGTH)
            return key
        key = (yield from self._reader.read_word(_KEY, MAX_NAME_LENGTH)).strip()
        if not key:
            raise MalformedCallError
        return key

    def _read_list(self, depth: int) -> Reading[None]:
        self._reader.take_chars(1)
        self.give_arguments("[")
        separator = ""
        while (yield from self._reader.skip_space()) != "]":
            self.give_arguments(separator)
            separator = ", "
            yield from self._read_value(depth)
            yield from self._end_item("]")
        self._reader.take_chars(1)
        self.give_arguments("]")

    def _end_item(self, end: str) -> Reading[None]:
        character = yield from self._reader.skip_space()
        if character == ",":
            self._reader.take_chars(1)
        elif character != end:
            raise MalformedCallError


class FunctionGemmaParser(GemmaMachine, start=("<start_function_call>",), end=("<end_function_call>",)):
    """``<start_function_call>call:f{a:<escape>text<escape>}<end_function_call>``."""

    string_tags: ClassVar = TagSet(("<escape>",))


class Gemma4Parser(GemmaMachine, start=("<|tool_call>",), end=("<tool_call|>",)):
    """``<|tool_call>call:f{a:<|"|>text<|"|>}<tool_call|>``."""

    string_tags: ClassVar = TagSet(('<|"|>',))
