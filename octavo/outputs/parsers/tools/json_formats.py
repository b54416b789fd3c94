"""Formats in which a call is one JSON object: ``{"name": "…", "arguments": {…}}``, alone or in a list, after a tag."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.json_text import read_string
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading


class TaggedJsonParser(JsonMachine):
    """Calls between a start tag and, usually, an end tag."""

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self.read_body()


class HermesParser(TaggedJsonParser):
    """Hermes 2 Pro, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5: ``<tool_call>{…}</tool_call>``, one call in each."""

    start_tags: ClassVar = TagSet(("<tool_call>",))
    end_tags: ClassVar = TagSet(("</tool_call>",))
    closing_tags: ClassVar = end_tags


class LongcatParser(TaggedJsonParser):
    """LongCat-Flash: ``<longcat_tool_call>{…}</longcat_tool_call>``."""

    start_tags: ClassVar = TagSet(("<longcat_tool_call>",))
    end_tags: ClassVar = TagSet(("</longcat_tool_call>",))
    closing_tags: ClassVar = end_tags


class JambaParser(TaggedJsonParser):
    """Jamba and Hunyuan: ``<tool_calls>[{…}, {…}]</tool_calls>``."""

    start_tags: ClassVar = TagSet(("<tool_calls>",))
    end_tags: ClassVar = TagSet(("</tool_calls>",))
    closing_tags: ClassVar = end_tags


class InternLMParser(TaggedJsonParser):
    """InternLM 2 and 2.5: ``<|action_start|><|plugin|>{…}<|action_end|>``, with ``parameters``."""

    start_tags: ClassVar = TagSet(("<|action_start|>",))
    end_tags: ClassVar = TagSet(("<|action_end|>",))
    closing_tags: ClassVar = end_tags

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self._reader.skip_space()
        yield from self._reader.expect("<|plugin|>")
        yield from self.read_body()


class GraniteParser(TaggedJsonParser):
    """Granite 3: ``<|tool_call|>[{…}, {…}]``; Granite 3.1 spells the tag ``<tool_call>``."""

    start_tags: ClassVar = TagSet(("<|tool_call|>", "<tool_call>"))
    closing_tags: ClassVar = TagSet(("</tool_call>",))


class Granite20bFunctionCallingParser(TaggedJsonParser):
    """Granite-20B-FunctionCalling: ``<function_call> {…}`` for each call."""

    start_tags: ClassVar = TagSet(("<function_call>",))


class Phi4MiniParser(TaggedJsonParser):
    """Phi-4-mini: ``functools[{…}, {…}]``, also between ``<|tool_call|>`` and ``<|/tool_call|>``."""

    start_tags: ClassVar = TagSet(("functools", "<|tool_call|>"))
    closing_tags: ClassVar = TagSet(("<|/tool_call|>",))

    def read_calls(self, tag: str) -> Reading[None]:
        if tag != "functools":
            yield from self._reader.skip_space()
            yield from self._reader.take_tag(TagSet(("functools",)))
            yield from self._reader.skip_space()
        if (yield from self._reader.peek()) != "[":
            raise MalformedCallError
        yield from self.read_body()


class GigaChat3Parser(TaggedJsonParser):
    """GigaChat 3: ``function call<|role_sep|>``, in 3.1 ``<|function_call|>``, and one object."""

    start_tags: ClassVar = TagSet(("function call<|role_sep|>", "<|function_call|>"))


class CohereParser(TaggedJsonParser):
    """Command R7B, Command A: ``<|START_ACTION|>[{…}]<|END_ACTION|>``, with ``tool_name`` and ``tool_call_id``."""

    name_keys: ClassVar = ("tool_name", "name")
    argument_keys: ClassVar = ("parameters", "arguments")
    id_keys: ClassVar = ("tool_call_id", "id")
    start_tags: ClassVar = TagSet(("<|START_ACTION|>",))
    end_tags: ClassVar = TagSet(("<|END_ACTION|>",))
    closing_tags: ClassVar = end_tags
    silent_tags: ClassVar = TagSet(
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>")
    )


class InklingParser(TaggedJsonParser):
    """Inkling: ``<|content_invoke_tool_json|>{"name": "f", "args": {…}}<|end_message|>``."""

    argument_keys: ClassVar = ("args", "arguments")
    start_tags: ClassVar = TagSet(("<|content_invoke_tool_json|>",))
    end_tags: ClassVar = TagSet(("<|end_message|>", "<|content_model_end_sampling|>"))
    closing_tags: ClassVar = end_tags


class ApertusParser(JsonMachine):
    """Apertus: ``<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>``, where the name is the key of its arguments."""

    start_tags: ClassVar = TagSet(("<|tools_prefix|>",))
    end_tags: ClassVar = TagSet(("<|tools_suffix|>",))
    closing_tags: ClassVar = end_tags

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self.read_body()

    def read_object(self) -> Reading[None]:
        reader = self._reader
        yield from reader.expect("{")
        while True:
            yield from reader.skip_space()
            name = yield from read_string(reader, MAX_NAME_LENGTH)
            if not name:
                raise MalformedCallError
            yield from reader.skip_space()
            yield from reader.expect(":")
            self.begin_call(name)
            yield from self.read_arguments()
            self.end_call()
            character = yield from reader.skip_space()
            if character != ",":
                break
            reader.take_chars(1)
        yield from reader.expect("}")
