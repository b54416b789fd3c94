"""How the served model marks thoughts and calls of tools."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config import ServerSettings
from octavo.errors import ConfigError
from octavo.outputs.parsers.answer import AnswerParser
from octavo.outputs.parsers.base import PromptEnd, Tool, ToolParser
from octavo.outputs.parsers.plugins import run_plugin
from octavo.outputs.parsers.reasoning.tagged import TaggedFormat
from octavo.outputs.parsers.registry import ReasoningFormat, detect, reasoning_format
from octavo.outputs.parsers.tools.call_text import CallText
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS, tool_parser
from octavo.outputs.parsers.tools.strict import strict_structural_tag
from octavo.records import StructuredOutputsParams, ThoughtTags
from octavo.tokenization.tokenizer import Tokenizer

AUTO = "auto"
TAUGHT_FORMAT = "hermes"
"""The format of calls that ``auto`` takes for a model whose chat template has no place for tools: most know it best."""


_START_MARKER, _END_MARKER = "reasoning_start_str", "reasoning_end_str"


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of one model.

    Attributes:
        reasoning: None if thoughts are not told from the rest.
        tools: name of the tool parser; None if calls are not looked for.
        start_marker: begins reasoning in place of the parser's tags, for ``thinking_token_budget``; empty for those.
        end_marker: forced when that budget is spent, in place of the parser's end tag; empty for that.
    """

    reasoning: ReasoningFormat | None
    tools: str | None
    start_marker: str = ""
    end_marker: str = ""

    @classmethod
    def choose(cls, settings: ServerSettings, tokenizer: Tokenizer | None, takes_tools: bool = True) -> "AnswerFormats":
        """What the settings name; ``auto`` goes by the chat template and the vocabulary.

        Args:
            takes_tools: the chat template has a place for tools; else the model is taught a format by the prompt.

        Raises:
            ConfigError: there is no parser of that name.
        """
        reasoning, tools = settings.reasoning_parser, settings.tool_call_parser
        if AUTO in (reasoning, tools):
            detected: tuple[str | None, str | None] = (None, None)
            if tokenizer is not None:
                vocabulary = tokenizer.get_vocab()
                detected = detect(tokenizer.chat_template, None, vocabulary.__contains__)
            reasoning = (detected[0] or "") if reasoning == AUTO else reasoning
            if tools == AUTO:
                tools = detected[1] or ("" if takes_tools else TAUGHT_FORMAT)
        return cls(
            reasoning_format(reasoning) if reasoning else None,
            tools or None,
            *_markers(settings),
        )

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
        """How the model is told to write calls, if its chat template does not; None if that is not known."""
        return None if self.tools is None else TOOL_FORMATS[self.tools].call_text

    def tells_apart(self, *, with_tools: bool) -> bool:
        """Whether text is parsed at all, for which special tokens must be spelled out in it."""
        return self.reasoning is not None or (with_tools and self.tools is not None)

    def thought_end(self, prompt_end: PromptEnd) -> tuple[str, str | None] | None:
        """The tag after which an answer proper begins, and what must come a few words later at most; None if it begins
        at once.
        """
        if self.reasoning is None:
            return None
        parser = self.reasoning.start(prompt_end)
        return (parser.end_tag or self.reasoning.end_tags[0], parser.end_tag_tail) if parser.is_reasoning else None

    def thought_openers(self, prompt_end: PromptEnd) -> tuple[str, ...]:
        """The tags with which the model begins a thought if the prompt leaves that to it; empty if it does not."""
        if not isinstance(self.reasoning, TaggedFormat):
            return ()
        return self.reasoning.start_tags if self.reasoning.start(prompt_end).is_left_to_model else ()

    def thought_tags(self, prompt_end: PromptEnd, tokenizer: Tokenizer) -> ThoughtTags | None:
        """The tags of thoughts in tokens; None if thoughts do not stand between tags, but in messages of their own."""
        if not isinstance(self.reasoning, TaggedFormat):
            return None
        end = self.thought_end(prompt_end)
        starts = [self.start_marker] if self.start_marker else self.reasoning.start_tags
        return ThoughtTags(
            [tokenizer.encode(tag, False) for tag in starts],
            tokenizer.encode(self.reasoning.end_tags[0] if end is None else end[0], False),
            is_open=end is not None,
            forced_end=tokenizer.encode(self.end_marker, False) if self.end_marker else [],
        )


def check_names(settings: ServerSettings) -> None:
    """Load plug-ins and refuse names that no parser has, before a model is loaded.

    Raises:
        ConfigError: a name is unknown, a plug-in is broken, or ``reasoning_config`` needs a reasoning parser.
    """
    _markers(settings)
    for plugin in (settings.reasoning_parser_plugin, settings.tool_parser_plugin):
        if plugin:
            run_plugin(plugin)
    if settings.reasoning_parser not in ("", AUTO):
        reasoning_format(settings.reasoning_parser)
    if settings.tool_call_parser not in ("", AUTO):
        tool_parser(settings.tool_call_parser, ())


def _markers(settings: ServerSettings) -> tuple[str, str]:
    """What begins reasoning, and what is forced to end it; empty for the parser's own tags."""
    config = settings.reasoning_config or {}
    unknown = sorted(set(config) - {"reasoning_parser", _START_MARKER, _END_MARKER})
    if unknown:
        raise ConfigError(f"reasoning_config has no field {unknown[0]!r}; it has {_START_MARKER} and {_END_MARKER}.")
    if not all(isinstance(value, str) for value in config.values()):
        raise ConfigError("reasoning_config: its fields are texts.")
    if config.get("reasoning_parser", settings.reasoning_parser) != settings.reasoning_parser:
        raise ConfigError("reasoning_config: give the name of the parser as reasoning_parser.")
    if config and not settings.reasoning_parser:
        raise ConfigError("reasoning_config needs a reasoning_parser.")
    return config.get(_START_MARKER, ""), config.get(_END_MARKER, "")
