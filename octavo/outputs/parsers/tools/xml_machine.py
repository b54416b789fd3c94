"""Calls whose arguments appear in tags of their own, each between its tags as bare text."""

import re
from abc import abstractmethod
from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import STRING, argument_json, argument_types, quoted
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH, ToolMachine
from octavo.outputs.parsers.tools.python_text import escaped
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_MAX_HEADER_LENGTH = 2 * MAX_NAME_LENGTH
_NAME_ATTRIBUTE = re.compile(r"""\bname\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


class ArgumentsMachine(ToolMachine):
    """Builds a call's JSON from arguments that come one by one.

    Strings go out as they come; what a schema gives another type, or none, waits for the argument's end.
    """

    _function = ""
    _num_arguments = 0

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        super().begin_call(name, call_id)
        self._function = name
        self._num_arguments = 0

    def read_value(self, name: str, tags: TagSet, types: frozenset[str] | None = None) -> Reading[str]:
        """Read the argument ``name`` up to one of ``tags``, which is returned; "" if the answer ends before.

        Args:
            types: the JSON types that it may have; by default what the tool's schema says.
        """
        if types is None:
            types = argument_types(self._schemas.get(self._function), name)
        self._begin_member(name)
        if types == STRING:
            self.give_arguments('"')
            tag = yield from self._reader.give_until(tags, lambda text: self.give_arguments(escaped(text)))
            if tag:
                self.give_arguments('"')
            return tag
        pieces: list[str] = []
        tag = yield from self._reader.give_until(tags, pieces.append)
        text = "".join(pieces)
        self.give_arguments(argument_json(text, types) if tag else text)
        return tag

    def give_member(self, name: str, value: str) -> None:
        """Give out a whole argument, its value as JSON."""
        self._begin_member(name)
        self.give_arguments(value)

    def _begin_member(self, name: str) -> None:
        self.give_arguments(f"{', ' if self._num_arguments else '{'}{quoted(name)}: ")
        self._num_arguments += 1

    def close_call(self) -> None:
        """The call ended as it should."""
        self.give_arguments("}" if self._num_arguments else "{}")
        self.end_arguments()
        self.end_call()


class XmlMachine(ArgumentsMachine):
    """Calls such as ``<invoke name="f"><parameter name="a">1</parameter></invoke>``.

    Attributes:
        section_tags: start tags that only say that calls follow.
        call_tags: what a call's header begins with, up to its name.
        argument_tag: what an argument's header begins with.
        value_ends: what ends an argument.
        call_ends: what ends a call.
        header_end: what ends the header of a call or an argument.
        trims_line_breaks: one line break at either end of a value is none of it; ``value_ends`` has the last.
    """

    section_tags: ClassVar[TagSet] = TagSet(())
    call_tags: ClassVar[TagSet]
    argument_tag: ClassVar[str]
    value_ends: ClassVar[TagSet]
    call_ends: ClassVar[TagSet]
    header_end: ClassVar[TagSet] = TagSet((">",))
    trims_line_breaks: ClassVar[bool] = False
    _inner_tags: ClassVar[TagSet]

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "call_tags"):
            super().__init_subclass__()
            return
        cls._inner_tags = TagSet((*cls.call_tags.tags, cls.argument_tag, *cls.call_ends.tags))
        super().__init_subclass__(
            start=cls.section_tags.tags + cls.call_tags.tags,
            end=cls.call_ends.tags,
            closing=cls.closing_tags.tags,
            silent=cls.silent_tags.tags,
        )

    def read_calls(self, tag: str) -> Reading[None]:
        if tag in self.section_tags.tags:
            yield from self.read_section_start()
        yield from self.read_call()

    def read_section_start(self) -> Reading[None]:
        """Read what appears between a section's tag and the header of its first call, the header's tag included."""
        yield from self._reader.skip_space()
        if not (yield from self._reader.take_tag(self.call_tags)):
            raise MalformedCallError

    def read_call(self) -> Reading[None]:
        """Read one call, whose header's tag has been read."""
        name, _ = yield from self._read_header()
        self.begin_call(name)
        tag = ""
        while True:
            tag = tag or (yield from self._reader.give_until(self._inner_tags, self.give_content))
            if not tag:
                return
            if tag in self.call_ends.tags:
                self.close_call()
                return
            if tag in self.call_tags.tags:
                self.close_call()
            self._reader.record(tag)
            name, header = yield from self._read_header()
            if tag in self.call_tags.tags:
                self.begin_call(name)
                tag = ""
                continue
            if self.trims_line_breaks and (yield from self._reader.peek()) == "\n":
                self._reader.take_chars(1)
            value_end = yield from self.read_value(name, self.value_ends, self.types_of(header))
            if not value_end:
                return
            tag = yield from self.after_value(value_end)

    def types_of(self, attributes: str) -> frozenset[str] | None:
        """The JSON types given in an argument's own header, None if there are none."""
        return None

    def after_value(self, tag: str) -> Reading[str]:
        """What the tag that ended an argument means for the call: "" nothing, or another tag."""
        yield from ()
        return ""

    def _read_header(self) -> Reading[tuple[str, str]]:
        """The name in a header, and the header's text."""
        header, _ = yield from self._reader.text_until(self.header_end, _MAX_HEADER_LENGTH)
        name = self.name_in(header)
        if not name or len(name) > MAX_NAME_LENGTH:
            raise MalformedCallError
        return name, header

    @abstractmethod
    def name_in(self, header: str) -> str:
        """The name in a header's text, "" if there is none."""


class AttributeXmlMachine(XmlMachine):
    """Names in attributes: ``<invoke name="f">``."""

    def name_in(self, header: str) -> str:
        match = _NAME_ATTRIBUTE.search(header)
        return next(filter(None, match.groups()), "").strip() if match is not None else ""


class EqualsXmlMachine(XmlMachine):
    """Names in the tag itself: ``<function=f>``."""

    trims_line_breaks = True

    def name_in(self, header: str) -> str:
        name = header.strip().strip("\"'")
        return "" if any(character in name for character in "<\n") else name
