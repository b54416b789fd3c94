"""Reasoning and the constraints of answers: where an answer proper begins, for structured output and token budgets.

Enters: the end of a prompt, and what a request asks of its answer. Leaves: the same with the tokens of the tags between
which the model reasons. How formats are read is the business of :mod:`octavo.outputs.parsers.reasoning`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from octavo.config.settings import ModelSettings
from octavo.errors import ConfigError
from octavo.inputs.prompts import ParsedPrompt
from octavo.outputs.parsers.base import PromptEnd
from octavo.outputs.parsers.reasoning.tagged import TaggedFormat
from octavo.records import ReasoningTags, SamplingParams, StructuredOutputsParams
from octavo.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:  # all formats, which a model without a parser does without
    from octavo.outputs.parsers.registry import ReasoningFormat

AUTO = "auto"
PROMPT_END_CHARACTERS = 1000
"""Tokens or characters at the prompt's end that are searched for open reasoning."""
_PROMPT_END_TOKENS = 1000
_START_MARKER, _END_MARKER = "reasoning_start_str", "reasoning_end_str"


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What replaces the parser's tags where reasoning is limited by ``thinking_token_budget``.

    Attributes:
        start: begins reasoning; empty for the parser's own tags.
        forced_end: forced when the budget is spent; empty for the parser's own end tag.
    """

    start: str = ""
    forced_end: str = ""

    @classmethod
    def of(cls, settings: ModelSettings) -> "ReasoningMarkers":
        """What the setting ``reasoning_config`` says.

        Raises:
            ConfigError: it has unknown fields, or there is no reasoning parser.
        """
        config = settings.reasoning_config or {}
        unknown = sorted(set(config) - {"reasoning_parser", _START_MARKER, _END_MARKER})
        if unknown:
            raise ConfigError(
                f"reasoning_config has no field {unknown[0]!r}; it has {_START_MARKER} and {_END_MARKER}."
            )
        if not all(isinstance(value, str) for value in config.values()):
            raise ConfigError("reasoning_config: its fields must be strings.")
        if config.get("reasoning_parser", settings.reasoning_parser) != settings.reasoning_parser:
            raise ConfigError("reasoning_config: give the name of the parser as reasoning_parser.")
        if config and not settings.reasoning_parser:
            raise ConfigError("reasoning_config needs a reasoning_parser.")
        return cls(config.get(_START_MARKER, ""), config.get(_END_MARKER, ""))


NO_MARKERS = ReasoningMarkers()


def detect_parsers(tokenizer: Tokenizer | None) -> tuple[str | None, str | None]:
    """The names of the reasoning parser and of the tool parser that fit a model's chat template and vocabulary."""
    if tokenizer is None:
        return None, None
    from octavo.outputs.parsers.registry import detect

    return detect(tokenizer.chat_template, None, tokenizer.get_vocab().__contains__)


def check_reasoning_parser(settings: ModelSettings) -> None:
    """Load the plug-in of reasoning parsers and reject a name that no parser has, before a model is loaded."""
    ReasoningMarkers.of(settings)
    if not settings.reasoning_parser_plugin and settings.reasoning_parser in ("", AUTO):
        return
    from octavo.outputs.parsers.registry import reasoning_format, run_plugin

    if settings.reasoning_parser_plugin:
        run_plugin(settings.reasoning_parser_plugin)
    if settings.reasoning_parser not in ("", AUTO):
        reasoning_format(settings.reasoning_parser)


def choose_reasoning(name: str, tokenizer: Tokenizer | None) -> "ReasoningFormat | None":
    """The format of this name; ``auto`` goes by chat template and vocabulary, None for no name."""
    found = detect_parsers(tokenizer)[0] if name == AUTO else name
    if not found:
        return None
    from octavo.outputs.parsers.registry import reasoning_format

    return reasoning_format(found)


def reasoning_end(reasoning: "ReasoningFormat | None", prompt_end: PromptEnd) -> tuple[str, str | None] | None:
    """The tag that precedes the answer, and what must follow it within a few words; None if there is no reasoning."""
    if reasoning is None:
        return None
    parser = reasoning.start(prompt_end)
    return (parser.end_tag or reasoning.end_tags[0], parser.end_tag_tail) if parser.is_reasoning else None


def reasoning_openers(reasoning: "ReasoningFormat | None", prompt_end: PromptEnd) -> tuple[str, ...]:
    """The tags with which the model begins to reason if the prompt leaves that to it; empty if it does not."""
    if not isinstance(reasoning, TaggedFormat):
        return ()
    return reasoning.start_tags if reasoning.start(prompt_end).is_left_to_model else ()


def reasoning_tags(
    reasoning: "ReasoningFormat | None",
    prompt_end: PromptEnd,
    tokenizer: Tokenizer,
    markers: ReasoningMarkers = NO_MARKERS,
) -> ReasoningTags | None:
    """The reasoning tags as tokens; None if reasoning is a message of its own instead of text between tags."""
    if not isinstance(reasoning, TaggedFormat):
        return None
    end = reasoning_end(reasoning, prompt_end)
    starts = [markers.start] if markers.start else reasoning.start_tags
    return ReasoningTags(
        [tokenizer.encode(tag, False) for tag in starts],
        tokenizer.encode(reasoning.end_tags[0] if end is None else end[0], False),
        is_open=end is not None,
        forced_end=tokenizer.encode(markers.forced_end, False) if markers.forced_end else [],
    )


@dataclass(frozen=True, slots=True)
class BoundAnswer:
    """A constraint that knows where it begins.

    Attributes:
        is_reasoning_marked: whether reasoning is sure to begin with its tag, since nothing else may begin the answer.
    """

    constraint: StructuredOutputsParams
    is_reasoning_marked: bool


def bind_after_reasoning(
    constraint: StructuredOutputsParams,
    reasoning: "ReasoningFormat | None",
    prompt_end: PromptEnd,
    tokenizer: Tokenizer,
) -> BoundAnswer:
    """The constraint for what follows the model's reasoning, if there is any."""
    end = reasoning_end(reasoning, prompt_end)
    if end is None:
        unbound = msgspec.structs.replace(constraint, start_after=None, start_after_tail=None, openers=None)
        return BoundAnswer(unbound, is_reasoning_marked=False)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    # Text between structural tags is free, so such a constraint cannot detect reasoning without a tag.
    tags = () if constraint.structural_tag else reasoning_openers(reasoning, prompt_end)
    # A model without a token for a tag was not taught to reason: offered the tag's first letter, it might take it.
    openers = [token_ids for tag in tags if len(token_ids := encode(tag)) == 1]
    tag, tail = end
    bound = msgspec.structs.replace(
        constraint,
        start_after=encode(tag),
        start_after_tail=encode(tail) if tail else None,
        openers=openers if tags else None,
    )
    return BoundAnswer(bound, is_reasoning_marked=bool(tags))


class ReasoningBinder:
    """Lets the constraints of requests begin after the model's reasoning, for entry points without chat protocols.

    Args:
        markers: replace its tags where the reasoning is limited.
    """

    def __init__(self, reasoning: "ReasoningFormat", tokenizer: Tokenizer, markers: ReasoningMarkers) -> None:
        self._markers = markers
        self._reasoning = reasoning
        self._tokenizer = tokenizer

    @classmethod
    def of(cls, settings: ModelSettings, tokenizer: Tokenizer | None) -> "ReasoningBinder | None":
        """What the settings ask for; None without a reasoning parser.

        Raises:
            ConfigError: there is no parser of that name, or no tokenizer to find tags with.
        """
        reasoning = choose_reasoning(settings.reasoning_parser, tokenizer)
        if reasoning is None:
            return None
        if tokenizer is None:
            raise ConfigError("reasoning_parser needs a tokenizer; the model was loaded with skip_tokenizer_init.")
        return cls(reasoning, tokenizer, ReasoningMarkers.of(settings))

    def bind(self, params: SamplingParams, prompt: ParsedPrompt) -> SamplingParams:
        """The parameters with the tags that their structured output and their reasoning budget need."""
        changes: dict[str, object] = {}
        has_budget = params.thinking_token_budget is not None and params.reasoning_tags is None
        if not has_budget and params.structured_outputs is None:
            return params
        prompt_end = PromptEnd(self._text_end(prompt), None, self._tokenizer, prompt.token_ids)
        if has_budget:
            changes["reasoning_tags"] = reasoning_tags(self._reasoning, prompt_end, self._tokenizer, self._markers)
        constraint = params.structured_outputs
        if constraint is not None and constraint.start_after is None:
            bound = bind_after_reasoning(constraint, self._reasoning, prompt_end, self._tokenizer)
            changes["structured_outputs"] = bound.constraint
        return msgspec.structs.replace(params, **changes)

    def _text_end(self, prompt: ParsedPrompt) -> str:
        if prompt.text is not None:
            return prompt.text[-PROMPT_END_CHARACTERS:]
        if prompt.embeds is not None:
            return ""
        token_ids = prompt.token_ids[-_PROMPT_END_TOKENS:]
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)[-PROMPT_END_CHARACTERS:]
