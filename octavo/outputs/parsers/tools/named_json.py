"""Formats in which a function's name precedes its arguments, which are JSON: DeepSeek, Kimi, Mistral."""

import re
from abc import abstractmethod
from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_FENCE = TagSet(("```json", "```"))
_FENCE_END = TagSet(("```",))
_KIMI_INDEX = re.compile(r":\d+$")
_CALL_ID = re.compile(r"[-\w]+")


class SectionParser(JsonMachine):
    """Calls with tags of their own, usually within the tags of a section.

    Attributes:
        call_tag: what a call begins with, with or without the section's tag before it.
    """

    call_tag: ClassVar[str]

    def read_calls(self, tag: str) -> Reading[None]:
        if tag != self.call_tag:
            yield from self._reader.skip_space()
            yield from self._reader.expect(self.call_tag)
        yield from self.read_call()

    @abstractmethod
    def read_call(self) -> Reading[None]:
        """Read one call after its tag."""


class DeepSeekV3Parser(
    SectionParser,
    start=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    end=("\n```<｜tool▁call▁end｜>", "```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"),
    closing=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
):
    """DeepSeek-V3 and R1: ``function<｜tool▁sep｜>f``, and the arguments fenced as a block of JSON."""

    call_tag: ClassVar = "<｜tool▁call▁begin｜>"
    separators: ClassVar = TagSet(("<｜tool▁sep｜>",))

    def read_call(self) -> Reading[None]:
        yield from self._reader.text_until(self.separators, MAX_NAME_LENGTH)
        self.begin_call((yield from self.read_name()))
        yield from self._reader.skip_space()
        yield from self._reader.take_tag(_FENCE)
        yield from self.read_arguments()
        yield from self._reader.skip_space()
        yield from self._reader.take_tag(_FENCE_END)
        yield from self.read_end()


class DeepSeekV31Parser(
    SectionParser,
    start=DeepSeekV3Parser.start_tags.tags,
    end=("<｜tool▁call▁end｜>",),
    closing=DeepSeekV3Parser.closing_tags.tags,
):
    """DeepSeek-V3.1: ``f<｜tool▁sep｜>{…}`` between the tags of V3."""

    call_tag: ClassVar = "<｜tool▁call▁begin｜>"

    def read_call(self) -> Reading[None]:
        name = yield from self.read_name()
        yield from self._reader.skip_space()
        yield from self._reader.expect("<｜tool▁sep｜>")
        self.begin_call(name)
        yield from self.read_arguments()
        yield from self.read_end()


class KimiK2Parser(
    SectionParser,
    start=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"),
    end=("<|tool_call_end|>",),
    closing=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
):
    """Kimi K2: an id such as ``functions.f:0``, which has the function's name in it, and the arguments."""

    call_tag: ClassVar = "<|tool_call_begin|>"
    separators: ClassVar = TagSet(("<|tool_call_argument_begin|>",))

    def read_call(self) -> Reading[None]:
        call_id, _ = yield from self._reader.text_until(self.separators, MAX_NAME_LENGTH)
        call_id = call_id.strip()
        name = _KIMI_INDEX.sub("", call_id.removeprefix("functions."))
        if not name:
            raise MalformedCallError
        self.begin_call(name, call_id)
        yield from self.read_arguments()
        yield from self.read_end()


class Plamo3Parser(
    SectionParser,
    start=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>"),
    end=("<|plamo:end_tool_arguments:plamo|>",),
    closing=(
        "<|plamo:end_tool_arguments:plamo|>",
        "<|plamo:end_tool_request:plamo|>",
        "<|plamo:end_tool_requests:plamo|>",
    ),
    silent=("<|plamo:tag|>",),
):
    """PLaMo 3: name and arguments between tags of their own."""

    call_tag: ClassVar = "<|plamo:begin_tool_request:plamo|>"
    _NAME_END: ClassVar = TagSet(("<|plamo:end_tool_name:plamo|>",))
    _CONSTRAINT: ClassVar = TagSet(("<|plamo:constrain|>json",))
    _BODY: ClassVar = TagSet(("<|plamo:msg|>",))

    def read_call(self) -> Reading[None]:
        yield from self._reader.skip_space()
        yield from self._reader.expect("<|plamo:begin_tool_name:plamo|>")
        name, _ = yield from self._reader.text_until(self._NAME_END, MAX_NAME_LENGTH)
        if not name.strip():
            raise MalformedCallError
        self.begin_call(name.strip())
        yield from self._reader.skip_space()
        yield from self._reader.expect("<|plamo:begin_tool_arguments:plamo|>")
        yield from self._reader.take_tag(self._CONSTRAINT)
        yield from self._reader.take_tag(self._BODY)
        yield from self.read_arguments()
        yield from self.read_end()


class MistralParser(JsonMachine, start=("[TOOL_CALLS]",), closing=("[/TOOL_CALLS]",)):
    """Mistral: ``[TOOL_CALLS]`` and a list of objects, or from tokenizer v11 on ``f[ARGS]{…}`` for each call.

    Between name and arguments an id may appear after ``[CALL_ID]``.
    """

    _CALL_ID_TAG: ClassVar = TagSet(("[CALL_ID]",))
    _ARGUMENTS_TAG: ClassVar = TagSet(("[ARGS]",))

    def read_calls(self, tag: str) -> Reading[None]:
        character = yield from self._reader.skip_space()
        if character and character in "[{":
            yield from self.read_body()
            return
        name = yield from self.read_name()
        yield from self._reader.skip_space()
        call_id: str | None = None
        if (yield from self._reader.take_tag(self._CALL_ID_TAG)):
            call_id = yield from self._reader.read_word(_CALL_ID, MAX_NAME_LENGTH)
        has_tag = bool((yield from self._reader.take_tag(self._ARGUMENTS_TAG)))
        if not has_tag and (yield from self._reader.peek()) != "{":
            raise MalformedCallError
        self.begin_call(name, call_id or None)
        yield from self.read_arguments()
        self.end_call()
