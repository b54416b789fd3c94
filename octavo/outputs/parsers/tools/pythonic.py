"""Formats in which calls are written as in Python: ``[f(a=1), g(b="x")]``."""

import re

from octavo.outputs.parsers.tools.argument_types import quoted
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH, ToolMachine
from octavo.outputs.parsers.tools.python_text import pass_literal
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_NAME = re.compile(r"[\w.\-]+")
_KEYWORD = re.compile(r"\w+")


class PythonicMachine(ToolMachine):
    """What formats share whose calls are written as in Python."""

    def read_list(self) -> Reading[None]:
        """Read a list of calls, whose bracket comes next."""
        yield from self._reader.skip_space()
        yield from self._reader.expect("[")
        character = ","
        while character == ",":
            if (yield from self._reader.skip_space()) == "]" and self._is_after_call:
                break
            yield from self.read_call()
            character = yield from self._reader.skip_space()
            if character == ",":
                self._reader.take_chars(1)
        yield from self._reader.expect("]")

    def read_call(self) -> Reading[None]:
        """Read one call; it begins when its first argument's keyword is known, or that it has none."""
        reader = self._reader
        yield from reader.skip_space()
        name = yield from reader.read_word(_NAME, MAX_NAME_LENGTH)
        yield from reader.skip_space()
        yield from reader.expect("(")
        if not name:
            raise MalformedCallError
        num_arguments = 0
        while (yield from reader.skip_space()) != ")":
            if num_arguments > 0:
                reader.record()
            keyword = yield from self._read_keyword()
            if num_arguments == 0:
                self.begin_call(name)
            self.give_arguments(f"{', ' if num_arguments else '{'}{quoted(keyword)}: ")
            num_arguments += 1
            yield from pass_literal(reader, self.give_arguments)
            character = yield from reader.skip_space()
            if character == ",":
                reader.take_chars(1)
            elif character != ")":
                raise MalformedCallError
        if num_arguments == 0:
            self.begin_call(name)
        reader.take_chars(1)
        self.give_arguments("}" if num_arguments else "{}")
        self.end_arguments()
        self.end_call()

    def _read_keyword(self) -> Reading[str]:
        keyword = yield from self._reader.read_word(_KEYWORD, MAX_NAME_LENGTH)
        yield from self._reader.skip_space()
        yield from self._reader.expect("=")
        if not keyword:
            raise MalformedCallError
        return keyword


class PythonicParser(PythonicMachine, start=("<|python_tag|>", "[")):
    """Llama 3.2, ToolACE and others: an answer that begins with a list of calls."""

    def read_calls(self, tag: str) -> Reading[None]:
        if tag == "[":
            if self._has_content:
                raise MalformedCallError
            self._reader.unread(tag)
        yield from self.read_list()


class Llama4PythonicParser(PythonicParser, start=("<|python_start|>", "<|python_tag|>", "["), end=("<|python_end|>",)):
    """Llama 4: a list of calls, bare at the answer's beginning or between tags anywhere."""


class Lfm2Parser(PythonicMachine, start=("<|tool_call_start|>",), end=("<|tool_call_end|>",)):
    """LFM2: ``<|tool_call_start|>[f(a=1)]<|tool_call_end|>``."""

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self.read_list()


class Olmo3Parser(PythonicMachine, start=("<function_calls>",), end=("</function_calls>",)):
    """OLMo 3: calls on lines of their own between ``<function_calls>`` tags."""

    def read_calls(self, tag: str) -> Reading[None]:
        while True:
            yield from self.read_call()
            character = yield from self._reader.skip_space()
            if character == ",":
                self._reader.take_chars(1)
            if (yield from self._reader.take_tag(self.end_tags)) or not character:
                return
