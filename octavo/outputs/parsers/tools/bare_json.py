"""Formats in which calls appear in the answer as plain JSON: Llama 3 and 4, xLAM."""

from typing import ClassVar

from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.reader import Reading

_BRACKETS = ("{", "[")


class LlamaJsonParser(JsonMachine):
    """Llama 3 and 4: ``{"name": "f", "parameters": {…}}``, several with semicolons between, also in a list.

    ``<|python_tag|>`` may come first. What else the model writes in JSON is content.
    """

    is_bare: ClassVar = True
    start_tags: ClassVar = TagSet(("<|python_tag|>", *_BRACKETS))

    def read_calls(self, tag: str) -> Reading[None]:
        if tag in _BRACKETS:
            self._reader.unread(tag)
        yield from self.read_body()


class XlamParser(JsonMachine):
    """xLAM: a list of calls, bare, in a block of code, or after ``[TOOL_CALLS]`` or ``<tool_call>``."""

    is_bare: ClassVar = True
    start_tags: ClassVar = TagSet(("```", "[TOOL_CALLS]", "<tool_call>", *_BRACKETS))
    closing_tags: ClassVar = TagSet(("</tool_call>",))
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
