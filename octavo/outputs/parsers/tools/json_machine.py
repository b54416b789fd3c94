"""Calls whose arguments are JSON: an object that names function and arguments, or bare arguments after a name."""

import re
from typing import ClassVar

from octavo.outputs.parsers.tools.json_text import (
    pass_decoded_string,
    pass_rest_of_object,
    pass_value,
    read_string,
)
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH, ToolMachine
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_CLOSERS = re.compile(r"[\s}\]]+")
_MAX_KEY_LENGTH = 1024


def _ignore(_: str) -> None:
    """Read without keeping."""


class JsonMachine(ToolMachine):
    """What formats with JSON arguments share.

    Attributes:
        name_keys: keys of a call's object whose value is the function's name.
        argument_keys: keys whose value is the arguments.
        id_keys: keys whose value is the call's id; it counts only before the call has begun.
        is_bare: calls appear in the answer without tags of their own, where other JSON may appear as well. An object is
            a call then only if it has nothing but the keys of one, and it begins when its arguments do.
    """

    name_keys: ClassVar[tuple[str, ...]] = ("name",)
    argument_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    id_keys: ClassVar[tuple[str, ...]] = ("id",)
    is_bare: ClassVar[bool] = False

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self.read_body()

    def read_arguments(self) -> Reading[None]:
        """Give out the arguments that come next; those in a string are decoded, and none become ``{}``."""
        character = yield from self._reader.skip_space()
        if character == '"':
            yield from pass_decoded_string(self._reader, self.give_arguments)
        elif character == "n":
            yield from self._reader.expect("null")
            self.give_arguments("{}")
        elif character and character not in "{[" and (yield from self._reader.take_tag(self.end_tags)):
            self.give_arguments("{}")
            self.end_arguments()
            self.end_call()
            return
        else:
            yield from pass_value(self._reader, self.give_arguments)
        self.end_arguments()

    def read_body(self) -> Reading[None]:
        """Read calls after a start tag: objects, or lists of them, with or without commas and semicolons between."""
        num_calls = self._num_calls
        while True:
            character = yield from self._reader.skip_space()
            if character and character in ",;" and self._num_calls > num_calls:
                self._reader.take_chars(1)
                character = yield from self._reader.skip_space()
            if character == "{":
                yield from self.read_object()
            elif character == "[":
                yield from self.read_list()
            else:
                break
        if self._num_calls == num_calls:
            raise MalformedCallError
        yield from self.read_end()

    def read_end(self) -> Reading[None]:
        """Read an end tag if one comes, and brackets too many before it."""
        if not self.end_tags.tags:
            self.give_content(self._reader.drop_record())
            return
        yield from self._reader.read_word(_CLOSERS, MAX_NAME_LENGTH)
        if not (yield from self._reader.take_tag(self.end_tags)):
            raise MalformedCallError

    def read_list(self) -> Reading[None]:
        """Read a list of calls, whose bracket comes next."""
        yield from self._reader.expect("[")
        num_calls = self._num_calls
        while True:
            character = yield from self._reader.skip_space()
            if character == "]":
                self._reader.take_chars(1)
                if self._num_calls > num_calls:
                    self._reader.record()
                return
            yield from self.read_object()
            character = yield from self._reader.skip_space()
            if character == ",":
                self._reader.take_chars(1)
            elif character != "]":
                raise MalformedCallError

    def read_object(self) -> Reading[None]:
        """Read one call's object, whose brace comes next."""
        reader = self._reader
        yield from reader.expect("{")
        name: str | None = None
        call_id: str | None = None
        held: list[str] = []
        has_begun = False
        while True:
            yield from reader.skip_space()
            key = yield from read_string(reader, _MAX_KEY_LENGTH)
            if self.is_bare and not has_begun and not self._is_known(key):
                yield from self._not_a_call()
            yield from reader.skip_space()
            yield from reader.expect(":")
            character = yield from reader.skip_space()
            if key in self.name_keys and name is None:
                name = yield from read_string(reader, MAX_NAME_LENGTH)
                if not name:
                    raise MalformedCallError
                if held or not self.is_bare:
                    self.begin_call(name, call_id)
                    has_begun = True
                if held:
                    self.give_arguments("".join(held))
                    self.end_arguments()
            elif key in self.argument_keys and not held and not (has_begun and self._has_arguments):
                if self.is_bare and not has_begun and character not in ("{", '"', "n"):
                    raise MalformedCallError
                if name is None:
                    yield from self._hold_arguments(character, held)
                else:
                    if not has_begun:
                        self.begin_call(name, call_id)
                        has_begun = True
                    yield from self.read_arguments()
            elif key in self.id_keys and character == '"' and not has_begun:
                call_id = yield from read_string(reader, MAX_NAME_LENGTH)
            else:
                yield from pass_value(reader, _ignore)
            character = yield from reader.skip_space()
            if character == ",":
                reader.take_chars(1)
                continue
            if character != "}" or not has_begun:
                raise MalformedCallError
            reader.take_chars(1)
            if not self._has_arguments:
                self.give_arguments("{}")
                self.end_arguments()
            self.end_call()
            return

    def _is_known(self, key: str) -> bool:
        return key in self.name_keys or key in self.argument_keys or key in self.id_keys or key == "type"

    def _not_a_call(self) -> Reading[None]:
        """Give the object out as content to its end, so that nothing within it is taken for a call."""
        self.give_content(self._reader.drop_record())
        self._is_in_call = False
        yield from pass_rest_of_object(self._reader, self.give_content)
        raise MalformedCallError

    def _hold_arguments(self, first: str, held: list[str]) -> Reading[None]:
        """Keep arguments that come before the name."""
        if first == '"':
            yield from pass_decoded_string(self._reader, held.append)
        elif first == "n":
            yield from self._reader.expect("null")
            held.append("{}")
        else:
            yield from pass_value(self._reader, held.append)
