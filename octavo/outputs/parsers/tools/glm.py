"""GLM-4.5 and GLM-4.7: a function's name, then keys and values in turn."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading
from octavo.outputs.parsers.tools.xml_machine import ArgumentsMachine


class GlmParser(ArgumentsMachine):
    """``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``, with or without line breaks between."""

    start_tags: ClassVar = TagSet(("<tool_call>",))
    end_tags: ClassVar = TagSet(("</tool_call>",))
    closing_tags: ClassVar = end_tags
    key_tag: ClassVar = "<arg_key>"
    key_ends: ClassVar = TagSet(("</arg_key>",))
    value_tag: ClassVar = "<arg_value>"
    value_ends: ClassVar = TagSet(("</arg_value>",))
    _inner_tags: ClassVar = TagSet(("<arg_key>", "</tool_call>"))

    def read_calls(self, tag: str) -> Reading[None]:
        name = yield from self.read_name()
        yield from self._reader.skip_space()
        inner = yield from self._reader.take_tag(self._inner_tags)
        if not inner:
            raise MalformedCallError
        self.begin_call(name)
        while inner == self.key_tag:
            self._reader.record(inner)
            key, _ = yield from self._reader.text_until(self.key_ends, MAX_NAME_LENGTH)
            yield from self._reader.skip_space()
            yield from self._reader.expect(self.value_tag)
            if not (yield from self.read_value(key.strip(), self.value_ends)):
                return
            inner = yield from self._reader.give_until(self._inner_tags, self.give_content)
        if inner:
            self.close_call()
