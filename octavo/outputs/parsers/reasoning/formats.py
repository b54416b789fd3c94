"""The reasoning formats between tags, by the names that vLLM gives them."""

from collections.abc import Sequence
from dataclasses import replace

from octavo.outputs.parsers.base import ContentText, PromptEnd, ReasoningParser, ReasoningText
from octavo.outputs.parsers.reasoning.tagged import TaggedFormat, UnmarkedAnswer

# Reasoning may mention the tag of a call; only text that continues like a call is one.
_XML_CALLS = ("<tool_call>\n<function=", "<tool_call><function=")
_JSON_CALLS = ('<tool_call>\n{"', '<tool_call>{"')
_DSML_CALLS = ("<｜DSML｜tool_calls>", "<｜DSML｜ calls>", "<｜DSML｜function_calls>")
_DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", *_DSML_CALLS)


class NonemptyContentFormat(TaggedFormat):
    """Nemotron's: a request may ask for content even if the answer is nothing but reasoning."""

    def start(self, prompt_end: PromptEnd) -> ReasoningParser:  # type: ignore[override]
        parser = super().start(prompt_end)
        if (prompt_end.template_kwargs or {}).get("force_nonempty_content") is True:
            return NonemptyContentParser(parser)
        return parser


class _WrappedParser(ReasoningParser):
    """Passes on another parser's state."""

    def __init__(self, parser: ReasoningParser) -> None:
        self._parser = parser

    @property
    def is_reasoning(self) -> bool:
        return self._parser.is_reasoning

    @property
    def end_tag(self) -> str | None:
        return self._parser.end_tag


class NonemptyContentParser(_WrappedParser):
    """Repeats the reasoning as content if the answer has no other."""

    def __init__(self, parser: ReasoningParser) -> None:
        super().__init__(parser)
        self._reasoning_text: list[str] = []
        self._has_content = False

    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        return self._watch(self._parser.parse_delta(text, token_ids))

    def flush(self) -> list[ReasoningText | ContentText]:
        parts = self._watch(self._parser.flush())
        if not self._has_content and self._reasoning_text:
            parts.append(ContentText("".join(self._reasoning_text)))
        self._reasoning_text = []
        return parts

    def _watch(self, parts: list[ReasoningText | ContentText]) -> list[ReasoningText | ContentText]:
        for part in parts:
            if isinstance(part, ContentText):
                self._has_content = self._has_content or bool(part.text.strip())
            elif not self._has_content:
                self._reasoning_text.append(part.text)
        return parts


class PrefixedReasoningParser(_WrappedParser):
    """Leaves the reasoning in the content, and adds the start tag that was part of the prompt."""

    def __init__(self, parser: ReasoningParser, start_tag: str) -> None:
        super().__init__(parser)
        self._start_tag = start_tag
        self._beginning: str | None = ""

    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        self._parser.parse_delta(text, token_ids)  # only its state is used: content begins where the reasoning ends
        return self._with_tag(text, is_finished=False)

    def flush(self) -> list[ReasoningText | ContentText]:
        self._parser.flush()
        return self._with_tag("", is_finished=True)

    def _with_tag(self, text: str, *, is_finished: bool) -> list[ReasoningText | ContentText]:
        if self._beginning is None:
            return [ContentText(text)] if text else []
        self._beginning += text
        beginning = self._beginning
        if self._start_tag.startswith(beginning) and not is_finished:
            return []
        self._beginning = None
        if not beginning:
            return []
        return [ContentText(beginning if beginning.startswith(self._start_tag) else self._start_tag + beginning)]


class PrefixedReasoningFormat(TaggedFormat):
    """MiniMax's way of old: clients get the tags within the content, to send them back as they are."""

    def start(self, prompt_end: PromptEnd) -> ReasoningParser:  # type: ignore[override]
        return PrefixedReasoningParser(super().start(prompt_end), self.start_tags[0])


_R1 = TaggedFormat(
    "deepseek_r1", unmarked=UnmarkedAnswer.REASONING, thinking_keys=(), implicit_end_tags=_DEEPSEEK_CALLS
)
_V3 = TaggedFormat(
    "deepseek_v3",
    unmarked=UnmarkedAnswer.REASONING,
    thinks_by_default=False,
    thinking_keys=("thinking", "enable_thinking"),
    implicit_end_tags=_DEEPSEEK_CALLS,
)
_THINK = TaggedFormat("think", implicit_end_tags=(*_XML_CALLS, *_JSON_CALLS))
_QWEN3 = replace(_THINK, name="qwen3", unmarked=UnmarkedAnswer.REASONING)
_GLM45 = TaggedFormat("glm45", implicit_end_tags=("<tool_call>",))
_HY = TaggedFormat(
    "hy_v3",
    start_tags=("<think>", "<think:opensource>"),
    end_tags=("</think>", "</think:opensource>"),
    unmarked=UnmarkedAnswer.REASONING,
    thinks_by_default=False,
    thinking_keys=("reasoning_effort", "enable_thinking"),
)
_COHERE = TaggedFormat(
    "cohere_command3",
    start_tags=("<|START_THINKING|>",),
    end_tags=("<|END_THINKING|>",),
    implicit_end_tags=("<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
    unmarked=UnmarkedAnswer.CONTENT,
    has_several_reasoning_blocks=True,
    content_open_tags=("<|START_RESPONSE|>", "<|START_TEXT|>"),
    content_close_tags=("<|END_RESPONSE|>", "<|END_TEXT|>"),
)
_NEMOTRON = NonemptyContentFormat(
    "nemotron_v3", unmarked=UnmarkedAnswer.REASONING, implicit_end_tags=(*_XML_CALLS, *_JSON_CALLS)
)
_STEP3P5 = TaggedFormat(
    "step3p5",
    implicit_end_tags=_XML_CALLS,
    unmarked=UnmarkedAnswer.REASONING,
    thinking_keys=(),
    has_several_reasoning_blocks=True,
)

TAGGED_FORMATS: tuple[TaggedFormat, ...] = (
    _R1,
    replace(_R1, name="step5", implicit_end_tags=_XML_CALLS),
    _V3,
    replace(_V3, name="deepseek_v4"),
    replace(_V3, name="deepseek_v41"),
    replace(_V3, name="poolside_v1", implicit_end_tags=()),
    replace(_V3, name="holo2", thinks_by_default=True, implicit_end_tags=()),
    _THINK,
    _QWEN3,
    replace(_QWEN3, name="mimo"),
    replace(_QWEN3, name="minicpmv", thinks_by_default=False),
    _GLM45,
    replace(_GLM45, name="glm47"),
    replace(_GLM45, name="ling3", thinks_by_default=False),
    TaggedFormat(
        "granite",
        start_tags=("Here is my thought process:", "Here's my thought process:", "<think>"),
        end_tags=("Here is my response:", "Here's my response:", "</think>"),
        unmarked=UnmarkedAnswer.CONTENT,
        content_open_tags=("<response>",),
        content_close_tags=("</response>",),
        stripped=" \n",
    ),
    replace(_NEMOTRON, name="granite_thinking_parser"),
    _NEMOTRON,
    TaggedFormat(
        "hunyuan_a13b",
        unmarked=UnmarkedAnswer.CONTENT,
        content_open_tags=("<answer>",),
        content_close_tags=("</answer>",),
    ),
    _HY,
    replace(_HY, name="hy_v4", thinks_by_default=True),
    TaggedFormat(
        "mistral",
        start_tags=("[THINK]",),
        end_tags=("[/THINK]",),
        implicit_end_tags=("[TOOL_CALLS]",),
        unmarked=UnmarkedAnswer.CONTENT,
        has_several_reasoning_blocks=True,
    ),
    TaggedFormat(
        "minimax_m2", unmarked=UnmarkedAnswer.REASONING, thinking_keys=(), implicit_end_tags=("<minimax:tool_call>",)
    ),
    PrefixedReasoningFormat("minimax_m2_append_think", unmarked=UnmarkedAnswer.REASONING, thinking_keys=()),
    TaggedFormat(
        "minimax_m3",
        start_tags=("<mm:think>",),
        end_tags=("</mm:think>",),
        implicit_end_tags=("]<]minimax[>[<tool_call>",),
        unmarked=UnmarkedAnswer.CONTENT,
        thinking_keys=("thinking_mode",),
    ),
    TaggedFormat(
        "step3",
        implicit_end_tags=("<｜tool_calls_begin｜>",),
        unmarked=UnmarkedAnswer.REASONING,
        thinking_keys=(),
        has_several_reasoning_blocks=True,
    ),
    _STEP3P5,
    TaggedFormat(
        "seed_oss",
        start_tags=("<seed:think>",),
        end_tags=("</seed:think>",),
        implicit_end_tags=("<seed:tool_call>",),
    ),
    TaggedFormat(
        "ernie45",
        implicit_end_tags=_JSON_CALLS,
        unmarked=UnmarkedAnswer.REASONING,
        content_open_tags=("<response>",),
        content_close_tags=("</response>",),
    ),
    TaggedFormat("kimi_k2", implicit_end_tags=("<|tool_calls_section_begin|>",)),
    TaggedFormat(
        "kimi_k3",
        start_tags=("<|open|>think<|sep|>",),
        end_tags=("<|close|>think<|sep|>",),
        implicit_end_tags=("<|open|>tools<|sep|>", "<|open|>response<|sep|>"),
        unmarked=UnmarkedAnswer.REASONING,
        thinking_keys=("thinking", "enable_thinking"),
        content_open_tags=("<|open|>response<|sep|>",),
        content_close_tags=("<|close|>response<|sep|>",),
        ignored_tags=("<|close|>message<|sep|>", "<|end_of_msg|>"),
    ),
    TaggedFormat(
        "k2_horizon",
        start_tags=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        end_tags=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        implicit_end_tags=("<ifm|tool_calls>",),
        thinking_keys=(),
    ),
    TaggedFormat("olmo3", unmarked=UnmarkedAnswer.REASONING, thinking_keys=()),
    TaggedFormat(
        "plamo3",
        start_tags=("<|plamo:begin_think:plamo|>",),
        end_tags=("<|plamo:end_think:plamo|>",),
        implicit_end_tags=("<|plamo:begin_tool_requests:plamo|>",),
        unmarked=UnmarkedAnswer.REASONING,
    ),
    _COHERE,
    replace(_COHERE, name="cohere_command4"),
    TaggedFormat(
        "gemma4",
        start_tags=("<|channel>thought\n", "<|channel>"),
        end_tags=("<channel|>",),
        implicit_end_tags=("<|tool_call>",),
        unmarked=UnmarkedAnswer.CONTENT,
        thinks_by_default=False,
        has_several_reasoning_blocks=True,
    ),
)
