"""Formats in which calls and arguments appear in tags such as ``<function=f>`` and ``<parameter name="a">``."""

import html
import re
from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import STRING
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading
from octavo.outputs.parsers.tools.xml_machine import AttributeXmlMachine, EqualsXmlMachine


class Qwen3CoderParser(EqualsXmlMachine):
    """Qwen3-Coder, Qwen3.5, MiMo, Step 3.5 and 5: a function and its parameters between ``<tool_call>`` tags.

    A value also ends where a line begins with the next parameter or with the end of the function, since models forget
    the tag between.
    """

    section_tags: ClassVar = TagSet(("<tool_call>",))
    call_tags: ClassVar = TagSet(("<function=",))
    argument_tag: ClassVar = "<parameter="
    value_ends: ClassVar = TagSet(("\n</parameter>", "</parameter>", "\n<parameter=", "\n</function>"))
    call_ends: ClassVar = TagSet(("</function>", "</tool_call>"))
    closing_tags: ClassVar = TagSet(("</tool_call>",))

    def after_value(self, tag: str) -> Reading[str]:
        yield from ()
        return tag[1:] if tag in ("\n<parameter=", "\n</function>") else ""


class SeedOssParser(Qwen3CoderParser):
    """Seed-OSS: as Qwen3-Coder's, between ``<seed:tool_call>`` tags."""

    section_tags: ClassVar = TagSet(("<seed:tool_call>",))
    call_ends: ClassVar = TagSet(("</function>", "</seed:tool_call>"))
    closing_tags: ClassVar = TagSet(("</seed:tool_call>",))


class MiniMaxM2Parser(AttributeXmlMachine):
    """MiniMax-M2: ``<invoke name="f">`` and ``<parameter name="a">`` between ``<minimax:tool_call>`` tags."""

    section_tags: ClassVar = TagSet(("<minimax:tool_call>",))
    call_tags: ClassVar = TagSet(("<invoke name=",))
    argument_tag: ClassVar = "<parameter name="
    value_ends: ClassVar = TagSet(("</parameter>",))
    call_ends: ClassVar = TagSet(("</invoke>", "</minimax:tool_call>"))
    closing_tags: ClassVar = TagSet(("</minimax:tool_call>",))

    def name_in(self, header: str) -> str:
        return super().name_in(f"name={header}")


class DeepSeekV32Parser(AttributeXmlMachine):
    """DeepSeek-V3.2: tags that begin with ``｜DSML｜``; ``string="true"`` says which arguments are strings."""

    section_tags: ClassVar = TagSet(("<｜DSML｜function_calls>",))
    call_tags: ClassVar = TagSet(("<｜DSML｜invoke ",))
    argument_tag: ClassVar = "<｜DSML｜parameter "
    value_ends: ClassVar = TagSet(("</｜DSML｜parameter>",))
    call_ends: ClassVar = TagSet(("</｜DSML｜invoke>", "</｜DSML｜function_calls>"))
    closing_tags: ClassVar = TagSet(("</｜DSML｜function_calls>",))

    def types_of(self, attributes: str) -> frozenset[str] | None:
        if 'string="true"' in attributes:
            return STRING
        return frozenset() if 'string="false"' in attributes else None


class DeepSeekV4Parser(DeepSeekV32Parser):
    """DeepSeek-V4: as V3.2's, between ``<｜DSML｜tool_calls>`` tags."""

    section_tags: ClassVar = TagSet(("<｜DSML｜tool_calls>",))
    call_ends: ClassVar = TagSet(("</｜DSML｜invoke>", "</｜DSML｜tool_calls>"))
    closing_tags: ClassVar = TagSet(("</｜DSML｜tool_calls>",))


class DeepSeekV41Parser(DeepSeekV32Parser):
    """DeepSeek-V4.1: as V4's, with a blank in every tag and a shorter name of the section."""

    section_tags: ClassVar = TagSet(("<｜DSML｜ calls>",))
    call_tags: ClassVar = TagSet(("<｜DSML｜ invoke ",))
    argument_tag: ClassVar = "<｜DSML｜ parameter "
    value_ends: ClassVar = TagSet(("</｜DSML｜ parameter>",))
    call_ends: ClassVar = TagSet(("</｜DSML｜ invoke>", "</｜DSML｜ calls>"))
    closing_tags: ClassVar = TagSet(("</｜DSML｜ calls>",))


class MuseParser(AttributeXmlMachine):
    """Muse: ``<atem:invoke name="f">`` and ``<atem:parameter name="a">``.

    The header of the message to the tool, which the reasoning parser leaves in place, is dropped. A function ``f``
    without a namespace is called ``f.f``.
    """

    section_tags: ClassVar = TagSet(("<atem:function_calls>", "to="))
    call_tags: ClassVar = TagSet(("<atem:invoke ",))
    argument_tag: ClassVar = "<atem:parameter "
    value_ends: ClassVar = TagSet(("</atem:parameter>",))
    call_ends: ClassVar = TagSet(("</atem:invoke>", "</atem:function_calls>"))
    closing_tags: ClassVar = TagSet(("</atem:function_calls>",))
    silent_tags: ClassVar = TagSet(("<|eom|>", "<|eot|>"))
    _RECIPIENT: ClassVar = re.compile(r"[\w.\-]+")

    def read_calls(self, tag: str) -> Reading[None]:
        if tag == "to=":
            yield from self._reader.read_word(self._RECIPIENT, MAX_NAME_LENGTH)
            yield from self._reader.expect("<|message|>")
        else:
            yield from super().read_calls(tag)

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        namespace, _, function = name.partition(".")
        is_doubled = namespace == function and name not in self._schemas and function in self._schemas
        super().begin_call(function if is_doubled else name, call_id)


class DotsParser(MiniMaxM2Parser, JsonMachine):
    """dots: as MiniMax-M2's, or one JSON object, between ``<dots_function_call>`` tags."""

    section_tags: ClassVar = TagSet(("<dots_function_call>",))
    call_ends: ClassVar = TagSet(("</invoke>", "</dots_function_call>"))
    closing_tags: ClassVar = TagSet(("</dots_function_call>",))

    def read_calls(self, tag: str) -> Reading[None]:
        if tag in self.section_tags.tags and (yield from self._reader.skip_space()) == "{":
            yield from self.read_body()
        else:
            yield from super().read_calls(tag)


class MiniCpm5Parser(AttributeXmlMachine):
    """MiniCPM 5: ``<function name="f"><param name="a">1</param></function>``, values also as CDATA."""

    call_tags: ClassVar = TagSet(("<function name=", "<functionname="))
    argument_tag: ClassVar = "<param"
    value_ends: ClassVar = TagSet(("</param>",))
    call_ends: ClassVar = TagSet(("</function>",))
    _CDATA: ClassVar = TagSet(("<![CDATA[",))
    _CDATA_END: ClassVar = TagSet(("]]></param>",))

    def name_in(self, header: str) -> str:
        header = header.strip()
        return super().name_in(header if header.startswith("name") else f"name={header}")

    def read_value(self, name: str, tags: TagSet, types: frozenset[str] | None = None) -> Reading[str]:
        if (yield from self._reader.take_tag(self._CDATA)):
            return (yield from super().read_value(name, self._CDATA_END, types))
        return (yield from super().read_value(name, tags, types))


class KimiK3Parser(AttributeXmlMachine):
    """Kimi K3: ``<|open|>call tool="f" index="1"<|sep|>``, and arguments that say their types."""

    section_tags: ClassVar = TagSet(("<|open|>tools<|sep|>",))
    call_tags: ClassVar = TagSet(("<|open|>call ",))
    argument_tag: ClassVar = "<|open|>argument "
    value_ends: ClassVar = TagSet(("<|close|>argument<|sep|>",))
    call_ends: ClassVar = TagSet(("<|close|>call<|sep|>", "<|close|>tools<|sep|>"))
    closing_tags: ClassVar = TagSet(("<|close|>tools<|sep|>",))
    silent_tags: ClassVar = TagSet(
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>")
    )
    header_end: ClassVar = TagSet(("<|sep|>",))
    _NAME: ClassVar = re.compile(r'\b(?:tool|key)="([^"]*)"')

    def name_in(self, header: str) -> str:
        match = self._NAME.search(header)
        return html.unescape(match.group(1)) if match is not None else ""

    def types_of(self, attributes: str) -> frozenset[str] | None:
        if 'type="string"' in attributes:
            return STRING
        return frozenset() if "type=" in attributes else None


class Step3Parser(AttributeXmlMachine):
    """Step3: ``<steptml:invoke name="f">`` after ``function<｜tool_sep｜>``, between tags with full-width bars."""

    section_tags: ClassVar = TagSet(("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"))
    call_tags: ClassVar = TagSet(("<steptml:invoke ",))
    argument_tag: ClassVar = "<steptml:parameter "
    value_ends: ClassVar = TagSet(("</steptml:parameter>",))
    call_ends: ClassVar = TagSet(("</steptml:invoke>", "<｜tool_call_end｜>"))
    closing_tags: ClassVar = TagSet(("<｜tool_call_end｜>", "<｜tool_calls_end｜>"))
    _HEAD: ClassVar = TagSet(("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>"))

    def read_section_start(self) -> Reading[None]:
        while True:
            yield from self._reader.skip_space()
            if not (yield from self._reader.take_tag(self._HEAD)):
                break
        if not (yield from self._reader.take_tag(self.call_tags)):
            raise MalformedCallError
