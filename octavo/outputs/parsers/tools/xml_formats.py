"""Formats in which calls and arguments stand in tags such as ``<function=f>`` and ``<parameter name="a">``."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import STRING
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading
from octavo.outputs.parsers.tools.xml_machine import AttributeXmlMachine, EqualsXmlMachine


class Qwen3CoderParser(EqualsXmlMachine):
    """Qwen3-Coder, Qwen3.5, MiMo, Step 3.5: a function and its parameters between ``<tool_call>`` tags.

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


class Step3Parser(AttributeXmlMachine):
    """Step3: ``<steptml:invoke name="f">`` behind ``function<｜tool_sep｜>``, between tags with full-width bars."""

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
