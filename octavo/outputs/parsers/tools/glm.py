"""Formats of a function's name, then keys and values in turn: GLM, Hunyuan 3 and 4, K2 Horizon."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.argument_types import STRING
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading
from octavo.outputs.parsers.tools.xml_machine import ArgumentsMachine

_MAX_SUFFIX_LENGTH = 64


class KeyValueTags:
    """The tags of one format, prepared once.

    Args:
        prefix: precedes the word in every tag.
        suffix: follows it.
    """

    def __init__(self, prefix: str = "", suffix: str = "") -> None:
        def tag(word: str, slash: str = "") -> str:
            return f"<{slash}{prefix}{word}{suffix}>"

        self.call = tag("tool_call")
        self.key = tag("arg_key")
        self.call_end = tag("tool_call", "/")
        self.calls_end = TagSet((tag("tool_calls", "/"),))
        self.separators = TagSet((tag("tool_sep"),))
        self.inner = TagSet((self.key, self.call_end))
        self.key_ends = TagSet((tag("arg_key", "/"),))
        self.types = TagSet((tag("arg_type"),))
        self.type_ends = TagSet((tag("arg_type", "/"),))
        self.value = tag("arg_value")
        self.value_ends = TagSet((tag("arg_value", "/"),))


class KeyValueMachine(ArgumentsMachine):
    """What these formats share."""

    def read_call(self, tags: KeyValueTags) -> Reading[None]:
        """Read one call after its start tag."""
        name = yield from self.read_name()
        yield from self._reader.skip_space()
        yield from self._reader.take_tag(tags.separators)
        yield from self._reader.skip_space()
        inner = yield from self._reader.take_tag(tags.inner)
        if not inner:
            raise MalformedCallError
        self.begin_call(name)
        while inner == tags.key:
            self._reader.record(inner)
            key, _ = yield from self._reader.text_until(tags.key_ends, MAX_NAME_LENGTH)
            types = yield from self._read_types(tags)
            yield from self._reader.expect(tags.value)
            if not (yield from self.read_value(key.strip(), tags.value_ends, types)):
                return
            inner = yield from self._reader.give_until(tags.inner, self.give_content)
        if inner:
            self.close_call()

    def _read_types(self, tags: KeyValueTags) -> Reading[frozenset[str] | None]:
        """The type between key and value, None if there is none."""
        types: frozenset[str] | None = None
        yield from self._reader.skip_space()
        if (yield from self._reader.take_tag(tags.types)):
            name, _ = yield from self._reader.text_until(tags.type_ends, MAX_NAME_LENGTH)
            types = STRING if name.strip() == "string" else frozenset()
            yield from self._reader.skip_space()
        return types


class GlmParser(KeyValueMachine, start=("<tool_call>",), end=("</tool_call>",)):
    """``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``, with or without line breaks between."""

    _TAGS: ClassVar = KeyValueTags()

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self.read_call(self._TAGS)


class HunyuanParser(KeyValueMachine, start=("<tool_calls>", "<tool_calls:")):
    """Hunyuan 3 and 4: GLM's tags within ``<tool_calls>``, in 3 with ``<tool_sep>`` after the name.

    All tags of a checkpoint may have a suffix, as in ``<tool_calls:opensource>``.
    """

    def read_calls(self, tag: str) -> Reading[None]:
        suffix = ""
        if tag.endswith(":"):
            suffix, _ = yield from self._reader.text_until(TagSet((">",)), _MAX_SUFFIX_LENGTH)
            suffix = f":{suffix}"
        tags = KeyValueTags(suffix=suffix)
        call_tags = TagSet((tags.call,))
        while True:
            yield from self._reader.skip_space()
            if (yield from self._reader.take_tag(call_tags)):
                yield from self.read_call(tags)
            elif self._is_after_call and (yield from self._reader.take_tag(tags.calls_end)):
                return
            else:
                raise MalformedCallError


class K2HorizonParser(
    KeyValueMachine,
    JsonMachine,
    start=("<ifm|tool_calls>", "<ifm|tool_call>"),
    end=("</ifm|tool_call>",),
    closing=("</ifm|tool_call>", "</ifm|tool_calls>"),
):
    """K2 Horizon: GLM's tags spelled ``<ifm|tool_call>``, with or without types of arguments, or JSON between them."""

    _TAGS: ClassVar = KeyValueTags("ifm|")

    def read_calls(self, tag: str) -> Reading[None]:
        if tag != self._TAGS.call:
            yield from self._reader.skip_space()
            yield from self._reader.expect(self._TAGS.call)
        if (yield from self._reader.skip_space()) == "{":
            yield from self.read_body()
        else:
            yield from self.read_call(self._TAGS)
