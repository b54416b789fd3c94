"""MiniMax-M3: arguments in elements that nest, every tag after a mark that no other text has.

``<note>text</note>`` is an argument, an element of elements is an object, or a list where the schema wants one, and
elements of one name make a list as well. Only arguments that the schema says are strings go out as they come.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import STRING, argument_json, quoted, resolved, schema_types
from octavo.outputs.parsers.tools.json_text import MAX_DEPTH
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading
from octavo.outputs.parsers.tools.xml_machine import ArgumentsMachine

_MARK = "]<]minimax[>["
_CALL = f"{_MARK}<invoke name="
_CALL_END = f"{_MARK}</invoke>"
_SECTION_END = f"{_MARK}</tool_call>"
_ELEMENT = f"{_MARK}<"
_ELEMENT_END = f"{_MARK}</"
_HEADER_END = TagSet((">",))
_CALL_TAGS = TagSet((_CALL,))
_INNER_TAGS = TagSet((_CALL, _CALL_END, _SECTION_END, _ELEMENT))
_ELEMENT_TAGS = TagSet((_ELEMENT, _ELEMENT_END))
_ELEMENT_NAME = re.compile(r"[^\s<>/]+")
_MIXED_TEXT = "$text"
"""Key of text between elements."""


@dataclass(slots=True)
class _Element:
    text: list[str] = field(default_factory=list)
    children: list[tuple[str, "_Element"]] = field(default_factory=list)


class MiniMaxM3Parser(
    ArgumentsMachine, start=(f"{_MARK}<tool_call>", _CALL), end=(_CALL_END,), closing=(_SECTION_END,)
):
    """``<tool_call><invoke name="f"><a>1</a></invoke></tool_call>``, each tag after ``]<]minimax[>[``."""

    def read_calls(self, tag: str) -> Reading[None]:
        if tag != _CALL:
            yield from self._reader.skip_space()
            if not (yield from self._reader.take_tag(_CALL_TAGS)):
                raise MalformedCallError
        inner = _CALL
        while inner == _CALL:
            header, _ = yield from self._reader.text_until(_HEADER_END, MAX_NAME_LENGTH)
            name = header.strip().strip("\"'")
            if not name:
                raise MalformedCallError
            self.begin_call(name)
            inner = yield from self._reader.give_until(_INNER_TAGS, self.give_content)
            while inner == _ELEMENT:
                yield from self._read_argument()
                inner = yield from self._reader.give_until(_INNER_TAGS, self.give_content)
            if inner:
                self.close_call()

    def _read_argument(self) -> Reading[None]:
        self._reader.record(_ELEMENT)
        name = yield from self._read_element_name()
        schema = self._schemas.get(self._function) or {}
        properties = schema.get("properties")
        own = properties.get(name) if isinstance(properties, Mapping) else None
        if schema_types(own, schema) == STRING:
            yield from self.read_value(name, TagSet((f"{_ELEMENT_END}{name}>",)))
            return
        element = yield from self._read_element(name, 1)
        self.give_member(name, _element_json(element, own, schema))

    def _read_element_name(self) -> Reading[str]:
        name, _ = yield from self._reader.text_until(_HEADER_END, MAX_NAME_LENGTH)
        if _ELEMENT_NAME.fullmatch(name) is None:
            raise MalformedCallError
        return name

    def _read_element(self, name: str, depth: int) -> Reading[_Element]:
        """Read an element's content and its end tag; all of it stays recorded, for it may break off."""
        if depth > MAX_DEPTH:
            raise MalformedCallError
        element = _Element()
        while True:
            tag = yield from self._reader.give_until(_ELEMENT_TAGS, element.text.append)
            if not tag:
                raise MalformedCallError
            child = yield from self._read_element_name()
            if tag == _ELEMENT:
                element.children.append((child, (yield from self._read_element(child, depth + 1))))
            elif child == name:
                return element
            else:
                raise MalformedCallError


def _element_json(element: _Element, schema: object, root: Mapping[str, Any]) -> str:
    """An element as JSON, by its part of the function's schema ``root``."""
    types = schema_types(schema, root)
    own = resolved(schema, root)
    text = "".join(element.text)
    if not element.children:
        if not text.strip() and "string" not in types and types & {"array", "object"}:
            return "[]" if "array" in types else "{}"
        return argument_json(text, types) if types else quoted(text)
    if "array" in types:
        items = own.get("items")
        return f"[{', '.join(_element_json(child, items, root) for _, child in element.children)}]"
    properties = own.get("properties")
    others = own.get("additionalProperties")
    members: dict[str, list[str]] = {_MIXED_TEXT: [quoted(text)]} if text.strip() else {}
    for name, child in element.children:
        part = properties.get(name, others) if isinstance(properties, Mapping) else others
        members.setdefault(name, []).append(_element_json(child, part, root))
    return "{" + ", ".join(f"{quoted(name)}: {_one_or_list(values)}" for name, values in members.items()) + "}"


def _one_or_list(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"
