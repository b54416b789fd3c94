"""Formats in which a call is one JSON object: ``{"name": "…", "arguments": {…}}``, alone or in a list."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.json_text import read_string
from octavo.outputs.parsers.tools.machine import MAX_NAME_LENGTH
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

_BRACKETS = ("{", "[")


class HermesParser(JsonMachine, start=("<tool_call>",), end=("</tool_call>",)):
    """Hermes 2 Pro, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5: ``<tool_call>{…}</tool_call>``, one call in each."""


class LongcatParser(JsonMachine, start=("<longcat_tool_call>",), end=("</longcat_tool_call>",)):
    """LongCat-Flash: ``<longcat_tool_call>{…}</longcat_tool_call>``."""


class JambaParser(JsonMachine, start=("<tool_calls>",), end=("</tool_calls>",)):
    """Jamba and Hunyuan: ``<tool_calls>[{…}, {…}]</tool_calls>``."""


class InternLMParser(JsonMachine, start=("<|action_start|>",), end=("<|action_end|>",)):
    """InternLM 2 and 2.5: ``<|action_start|><|plugin|>{…}<|action_end|>``, with ``parameters``."""

    def read_calls(self, tag: str) -> Reading[None]:
        yield from self._reader.skip_space()
        yield from self._reader.expect("<|plugin|>")
        yield from self.read_body()


class GraniteParser(JsonMachine, start=("<|tool_call|>", "<tool_call>"), closing=("</tool_call>",)):
    """Granite 3: ``<|tool_call|>[{…}, {…}]``; Granite 3.1 spells the tag ``<tool_call>``."""


class Granite20bFunctionCallingParser(JsonMachine, start=("<function_call>",)):
    """Granite-20B-FunctionCalling: ``<function_call> {…}`` for each call."""


class Phi4MiniParser(JsonMachine, start=("functools", "<|tool_call|>"), closing=("<|/tool_call|>",)):
    """Phi-4-mini: ``functools[{…}, {…}]``, also between ``<|tool_call|>`` and ``<|/tool_call|>``."""

    def read_calls(self, tag: str) -> Reading[None]:
        if tag != "functools":
            yield from self._reader.skip_space()
            yield from self._reader.take_tag(TagSet(("functools",)))
            yield from self._reader.skip_space()
        if (yield from self._reader.peek()) != "[":
            raise MalformedCallError
        yield from self.read_body()


class GigaChat3Parser(JsonMachine, start=("function call<|role_sep|>", "<|function_call|>")):
    """GigaChat 3: ``function call<|role_sep|>``, in 3.1 ``<|function_call|>``, and one object."""


class CohereParser(
    JsonMachine,
    start=("<|START_ACTION|>",),
    end=("<|END_ACTION|>",),
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>"),
):
    """Command R7B, Command A: ``<|START_ACTION|>[{…}]<|END_ACTION|>``, with ``tool_name`` and ``tool_call_id``."""

    name_keys: ClassVar = ("tool_name", "name")
    argument_keys: ClassVar = ("parameters", "arguments")
    id_keys: ClassVar = ("tool_call_id", "id")


class InklingParser(
    JsonMachine, start=("<|content_invoke_tool_json|>",), end=("<|end_message|>", "<|content_model_end_sampling|>")
):
    """Inkling: ``<|content_invoke_tool_json|>{"name": "f", "args": {…}}<|end_message|>``."""

    argument_keys: ClassVar = ("args", "arguments")


class ApertusParser(JsonMachine, start=("<|tools_prefix|>",), end=("<|tools_suffix|>",)):
    """Apertus: ``<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>``, where the name is the key of its arguments."""

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


class LlamaJsonParser(JsonMachine, start=("<|python_tag|>", *_BRACKETS)):
    """Llama 3 and 4: ``{"name": "f", "parameters": {…}}``, several with semicolons between, also in a list.

    ``<|python_tag|>`` may come first. What else the model writes in JSON is content.
    """

    is_bare: ClassVar = True

    def read_calls(self, tag: str) -> Reading[None]:
        if tag in _BRACKETS:
            self._reader.unread(tag)
        yield from self.read_body()


class XlamParser(JsonMachine, start=("```", "[TOOL_CALLS]", "<tool_call>", *_BRACKETS), closing=("</tool_call>",)):
    """xLAM: a list of calls, bare, in a block of code, or after ``[TOOL_CALLS]`` or ``<tool_call>``."""

    is_bare: ClassVar = True
    _FENCE_HEAD: ClassVar = TagSet(("json",))
    _FENCE_END: ClassVar = TagSet(("```",))

    def read_calls(self, tag: str) -> Reading[None]:
        if tag in _BRACKETS:
            self._reader.unread(tag)
        elif tag == "```":
            yield from self._reader.take_tag(self._FENCE_HEAD)
        yield from self.read_body()
        if tag == "```":
            self._reader.record()
            yield from self._reader.skip_space()
            if (yield from self._reader.take_tag(self._FENCE_END)):
                self.end_call()
