"""How the served model marks reasoning and tool calls."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config import ServerSettings
from octavo.config.settings import ModelSettings
from octavo.inputs.reasoning import (
    AUTO,
    NO_MARKERS,
    ReasoningMarkers,
    check_reasoning_parser,
    choose_reasoning,
    detect_parsers,
    reasoning_tags,
)
from octavo.outputs.parsers.answer import AnswerParser
from octavo.outputs.parsers.base import PromptEnd, Tool, ToolParser
from octavo.outputs.parsers.registry import ReasoningFormat, run_plugin
from octavo.outputs.parsers.tools.call_text import CallText
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS, tool_parser
from octavo.outputs.parsers.tools.strict import strict_structural_tag
from octavo.records import ReasoningTags, StructuredOutputsParams
from octavo.tokenization.tokenizer import Tokenizer

TAUGHT_FORMAT = "hermes"
"""The format of calls that ``auto`` takes for a model whose chat template has no place for tools: most know it best."""


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of one model.

    Attributes:
        reasoning: None if reasoning is not parsed.
        tools: name of the tool parser; None if calls are not looked for.
        markers: replace the reasoning parser's tags where reasoning is limited.
    """

    reasoning: ReasoningFormat | None
    tools: str | None
    markers: ReasoningMarkers = NO_MARKERS

    @classmethod
    def choose(
        cls, model: ModelSettings, settings: ServerSettings, tokenizer: Tokenizer | None, takes_tools: bool = True
    ) -> "AnswerFormats":
        """What the settings name; ``auto`` goes by the chat template and the vocabulary.

        Args:
            takes_tools: the chat template has a place for tools; else the model is taught a format by the prompt.
        """
        reasoning, tools = model.reasoning_parser, settings.tool_call_parser
        if AUTO in (reasoning, tools):
            detected = detect_parsers(tokenizer)
            reasoning = (detected[0] or "") if reasoning == AUTO else reasoning
            if tools == AUTO:
                tools = detected[1] or ("" if takes_tools else TAUGHT_FORMAT)
        return cls(choose_reasoning(reasoning, tokenizer), tools or None, ReasoningMarkers.of(model))

    def parser(
        self, prompt_end: PromptEnd, *, tools: Sequence[Tool] = (), forced: ToolParser | None = None
    ) -> AnswerParser:
        """A parser for one completion.

        Args:
            tools: what may be called; calls are not looked for without.
            forced: reads an answer that is bound to be calls.
        """
        calls = forced
        if calls is None and tools and self.tools is not None:
            calls = tool_parser(self.tools, tools)
        return AnswerParser(None if self.reasoning is None else self.reasoning.start(prompt_end), calls)

    def strict_calls(self, tools: Sequence[Tool]) -> StructuredOutputsParams | None:
        """What binds calls of strict tools to their schemas, wherever they begin; None if no tool is strict."""
        tag = None if self.tools is None else strict_structural_tag(self.tools, tools)
        return None if tag is None else StructuredOutputsParams(structural_tag=json.dumps(tag))

    @property
    def call_text(self) -> CallText | None:
        """How the prompt describes calls if the chat template does not; None if that is not known."""
        return None if self.tools is None else TOOL_FORMATS[self.tools].call_text

    def needs_parsing(self, *, with_tools: bool) -> bool:
        """Whether text is parsed, which requires special tokens in the text."""
        return self.reasoning is not None or (with_tools and self.tools is not None)

    def reasoning_tags(self, prompt_end: PromptEnd, tokenizer: Tokenizer) -> ReasoningTags | None:
        """See :func:`~octavo.inputs.reasoning.reasoning_tags`."""
        return reasoning_tags(self.reasoning, prompt_end, tokenizer, self.markers)


def check_names(model: ModelSettings, settings: ServerSettings) -> None:
    """Load plug-ins and refuse names that no parser has, before a model is loaded."""
    check_reasoning_parser(model)
    if settings.tool_parser_plugin:
        run_plugin(settings.tool_parser_plugin)
    if settings.tool_call_parser not in ("", AUTO):
        tool_parser(settings.tool_call_parser, ())
