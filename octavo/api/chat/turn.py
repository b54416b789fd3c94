"""Generates and parses the answer to one conversation."""

import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from octavo.api.beam_search import text_outputs
from octavo.api.chat.conversation import Conversation, merged_kwargs
from octavo.api.frontend import Frontend, engine_id
from octavo.inputs.reasoning import PROMPT_END_CHARACTERS, bind_after_reasoning, reasoning_end
from octavo.outputs.parsers.answer import AnswerParser
from octavo.outputs.parsers.base import (
    AnswerPart,
    ContentText,
    PromptEnd,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
)
from octavo.outputs.parsers.tools.forced import forced_parser, forced_schema
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)
from octavo.sampling.grammar.reasoning_limit import ReasoningLimit


@dataclass(slots=True)
class ChatUpdate:
    """The new parts of one completion.

    Attributes:
        output: the request's output that it came with.
        completion: the engine's view: text as generated, tokens, log-probabilities, why it ended.
        parts: what the text means. Every call has an id.
        finish_reason: as the protocols know it: ``tool_calls`` where an answer ended with calls.
    """

    output: RequestOutput
    completion: CompletionOutput
    parts: list[AnswerPart]
    finish_reason: str | None


@dataclass(slots=True)
class ToolCall:
    """A whole call of a tool; ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AssistantAnswer:
    """A whole answer, gathered from its parts.

    Attributes:
        reasoning, content: None if there was none.
    """

    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, part: AnswerPart) -> None:
        """Take the next part."""
        match part:
            case ToolCallBegin(_, name, call_id):
                self.tool_calls.append(ToolCall(call_id or new_call_id(), name))
            case ToolCallArguments(index, text):
                self.tool_calls[index].arguments += text
            case ReasoningText(text):
                self.reasoning = (self.reasoning or "") + text
            case ContentText(text):
                self.content = (self.content or "") + text


def new_call_id() -> str:
    """An id for a tool call, in vLLM's format."""
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


class ChatTurn:
    """One request for an answer (or ``n`` of them): the rendered prompt, and the answer as it comes.

    Attributes:
        prompt: the conversation as the model reads it.
        is_bare: answers are content and nothing else.
        num_reasoning_tokens: tokens of reasoning so far, by completion.
        reasoning_ended: whether the answer begins after the model's reasoning; None if reasoning is not parsed.
        conversation: what is answered.
    """

    def __init__(
        self,
        frontend: Frontend,
        conversation: Conversation,
        prompt: TokensPrompt,
        params: SamplingParams,
        answer_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        length_penalty: float | None = None,
    ) -> None:
        self.prompt = prompt
        self._length_penalty = length_penalty
        self.num_reasoning_tokens: Counter[int] = Counter()
        self._frontend = frontend
        self._formats = frontend.formats()
        self._prompt_end = PromptEnd(
            (prompt.get("prompt") or "")[-PROMPT_END_CHARACTERS:],
            merged_kwargs(frontend, conversation),
            frontend.engine.tokenizer,
            prompt["prompt_token_ids"],
        )
        is_open = reasoning_end(self._formats.reasoning, self._prompt_end) is not None
        self.reasoning_ended = None if self._formats.reasoning is None else not is_open
        self.conversation = conversation
        self.engine_id = engine_id(answer_id, 0)
        self._parsers: dict[int, AnswerParser] = {}
        self.is_bare = not (conversation.is_forced or self._formats.needs_parsing(with_tools=conversation.may_call))
        self.params = self._adapted(params)
        # An answer that comes in one piece is parsed as a whole, so its reasoning tokens are counted afterwards.
        self._is_whole = length_penalty is not None or params.output_kind is RequestOutputKind.FINAL_ONLY
        self._priority = priority
        self._cache_salt = cache_salt

    def outputs(self, take_text: TextTaker | None = None) -> AsyncGenerator[RequestOutput, None]:
        """What the engine says, each to be read once by :meth:`read`; closing this aborts the request.

        Args:
            take_text: may be offered tokens with their text; those that it takes are in no output.
        """
        return text_outputs(
            self._frontend.engine,
            self.prompt,
            self.params,
            self._length_penalty,
            self.engine_id,
            priority=self._priority,
            cache_salt=self._cache_salt,
            take_text=take_text,
        )

    def read(self, output: RequestOutput) -> list[ChatUpdate]:
        """The updates of the completions in an output."""
        return [self._update(output, completion) for completion in output.outputs]

    async def updates(self, take_text: TextTaker | None = None) -> AsyncGenerator[ChatUpdate, None]:
        """The updates of the completions as they come; closing this aborts the request.

        Args:
            take_text: may be offered tokens with their text, for :meth:`read_text`; those that it takes are in no
                update.
        """
        async with aclosing(self.outputs(take_text)) as outputs:
            async for output in outputs:
                for update in self.read(output):
                    yield update

    def read_text(self, index: int, text: str, token_ids: Sequence[int]) -> list[AnswerPart]:
        """Parse the next piece of an unfinished completion."""
        if self.is_bare:
            return [ContentText(text)] if text else []
        parser = self._parser(index)
        parts = parser.parse_delta(text, token_ids)
        if parser.is_reasoning:
            self.num_reasoning_tokens[index] += len(token_ids)
        return _named(parts)

    def _update(self, output: RequestOutput, completion: CompletionOutput) -> ChatUpdate:
        reason = completion.finish_reason
        parts = self.read_text(completion.index, completion.text, completion.token_ids)
        if reason is not None and not self.is_bare:
            parser = self._parser(completion.index)
            if self._is_whole and not parser.is_reasoning:
                num_tokens = self._num_reasoning_tokens(completion.token_ids, parts)
                self.num_reasoning_tokens[completion.index] += num_tokens
            rest = _named(parser.flush(is_whole=reason == "stop"))
            if self.conversation.is_forced and (reason != "stop" or completion.stop_reason is not None):
                # Held back was the beginning of a call: text that only the grammar made, and nothing for a reader.
                rest = [part for part in rest if not isinstance(part, ContentText)]
            parts += rest
            if reason == "stop" and parser.num_tool_calls and self.conversation.tool_choice != "named":
                reason = "tool_calls"
        return ChatUpdate(output, completion, parts, reason)

    def _num_reasoning_tokens(self, token_ids: Sequence[int], parts: Sequence[AnswerPart]) -> int:
        """How many tokens of a whole answer are reasoning."""
        reasoning_text = "".join(part.text for part in parts if isinstance(part, ReasoningText))
        tokenizer = self._frontend.engine.tokenizer
        if not reasoning_text or tokenizer is None:
            return 0
        tags = self._formats.reasoning_tags(self._prompt_end, tokenizer)
        if tags is not None:
            count = ReasoningLimit(len(token_ids), tags)
            for token_id in token_ids:
                count.accept(token_id)
            if not count.is_open:
                return count.num_tokens
        return len(tokenizer.encode(reasoning_text, False))

    def _parser(self, index: int) -> AnswerParser:
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._new_parser()
        return parser

    def _new_parser(self) -> AnswerParser:
        conversation = self.conversation
        if conversation.is_forced:
            forced = forced_parser(conversation.named_tool)
            return self._formats.parser(self._prompt_end, forced=forced)
        return self._formats.parser(self._prompt_end, tools=conversation.tools if conversation.may_call else ())

    def _adapted(self, params: SamplingParams) -> SamplingParams:
        conversation = self.conversation
        changes: dict[str, Any] = {}
        if self._formats.needs_parsing(with_tools=conversation.may_call):
            changes["skip_special_tokens"] = False
        if params.thinking_token_budget is not None and self._frontend.engine.tokenizer is not None:
            changes["reasoning_tags"] = self._formats.reasoning_tags(self._prompt_end, self._frontend.engine.tokenizer)
        constraint = params.structured_outputs or conversation.response_format
        if conversation.is_forced:
            schema = forced_schema(conversation.tools, conversation.named_tool, is_parallel=conversation.is_parallel)
            constraint = StructuredOutputsParams(json=schema)
        elif constraint is None and conversation.may_call:
            constraint = self._formats.strict_calls(conversation.tools)
        if constraint is not None:
            changes["structured_outputs"] = self._after_reasoning(constraint)
        return msgspec.structs.replace(params, **changes) if changes else params

    def _after_reasoning(self, constraint: StructuredOutputsParams) -> StructuredOutputsParams:
        """The constraint, applied after the reasoning if there is any."""
        if self._formats.reasoning is None:
            return msgspec.structs.replace(constraint, start_after=None, start_after_tail=None, openers=None)
        tokenizer = self._frontend.need_tokenizer()
        bound = bind_after_reasoning(constraint, self._formats.reasoning, self._prompt_end, tokenizer)
        if bound.is_reasoning_marked:
            self._prompt_end = replace(self._prompt_end, is_reasoning_marked=True)
        return bound.constraint


def _named(parts: list[AnswerPart]) -> list[AnswerPart]:
    """The parts, each call with an id."""
    return [
        ToolCallBegin(part.index, part.name, part.call_id or new_call_id()) if isinstance(part, ToolCallBegin) else part
        for part in parts
    ]


Gathered = tuple[RequestOutput, dict[int, tuple[ChatUpdate, AssistantAnswer]]]
"""A turn's last output, and each completion's last update and whole answer, by index."""


async def gather(turn: ChatTurn) -> Gathered:
    """Run a turn to its end."""
    answers: dict[int, tuple[ChatUpdate, AssistantAnswer]] = {}
    output: RequestOutput | None = None
    async with aclosing(turn.updates()) as updates:
        async for update in updates:
            output = update.output
            _, answer = answers.get(update.completion.index, (None, AssistantAnswer()))
            for part in update.parts:
                answer.add(part)
            answers[update.completion.index] = (update, answer)
    assert output is not None, "an engine says at least how a request ended"
    return output, answers
