"""``/v1/chat/completions``."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api import pieces
from octavo.api.answer_size import check_prompt_entries, check_repeated_text
from octavo.api.chat.conversation import Conversation, render
from octavo.api.chat.tools import allowed_tools, parse_tool_choice, parse_tools
from octavo.api.chat.turn import AssistantAnswer, ChatTurn, ChatUpdate, Gathered, gather
from octavo.api.frontend import Frontend, answer_id
from octavo.api.json_body import in_thread_if_large
from octavo.api.logprobs import ChatLogprobs, chat_logprobs, finite_prompt_logprobs
from octavo.api.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    FunctionCall,
    TextEvents,
    ToolCallDelta,
    ToolCallInfo,
)
from octavo.api.openai.protocol import ChatCompletionRequest, TokenizeRequest
from octavo.api.openai.sampling import beam_length_penalty, chat_params, refuse_unsupported, truncate
from octavo.api.pieces import ListWriter, encode_event
from octavo.api.routed_experts import num_entries as num_expert_entries
from octavo.api.routed_experts import routed_experts
from octavo.api.usage import RequestMetrics, StreamedMetrics, UsageCounter, UsageMode, request_metrics
from octavo.api.watched import WatchedResponse, direct_writer, send_json
from octavo.errors import InvalidRequestError
from octavo.outputs.parsers.base import AnswerPart, ContentText, ReasoningText, ToolCallArguments, ToolCallBegin
from octavo.records import CompletionOutput, RequestOutput


def chat_router(frontend: Frontend) -> APIRouter:
    """The route that answers conversations."""
    router = frontend.json_router("chat", "/v1/chat/completions")

    @router.post("", summary="Answer a conversation.")
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        answer, turn = await start_chat(frontend, body, request)

        async def work(send: Send) -> None:
            if body.stream:
                await frontend.send_events(send, answer.events(turn, send))
            else:
                await send_json(send, await answer.whole(turn))

        return WatchedResponse(work, frontend.drain)

    return router


async def start_chat(
    frontend: Frontend, body: ChatCompletionRequest, request: Request
) -> "tuple[ChatAnswer, ChatTurn]":
    """What builds the answer, and its turn; generation starts when the turn's updates are iterated."""
    model = frontend.check_model(body.model)
    refuse_unsupported(body)
    name = answer_id("chatcmpl", request, body.request_id)
    answer = await in_thread_if_large(request, partial(ChatAnswer, frontend, body, name, model))
    return answer, await answer.start(partial(in_thread_if_large, request))


def conversation_of(body: ChatCompletionRequest | TokenizeRequest, messages: list[dict[str, Any]]) -> Conversation:
    """What a request asks, in terms of no protocol."""
    tools, choice = parse_tools(body.tools), None
    if isinstance(body, ChatCompletionRequest):
        tools, choice = allowed_tools(tools, body.tool_choice)
    kwargs = dict(body.chat_template_kwargs or {})
    common: dict[str, Any] = {
        "messages": messages,
        "tools": tools,
        "documents": body.documents,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
        "add_special_tokens": bool(body.add_special_tokens),
        "template_kwargs": kwargs,
    }
    if isinstance(body, TokenizeRequest):
        return Conversation(**common)
    mode, named = parse_tool_choice(choice, has_tools=bool(tools))
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            kwargs.setdefault("enable_thinking", False)
    is_parallel = body.parallel_tool_calls is not False
    return Conversation(**common, tool_choice=mode, named_tool=named, is_parallel=is_parallel)


def answer_role(body: ChatCompletionRequest, response_role: str) -> str:
    """Whose turn the answer is: a new one, or the last message's if that is continued."""
    return response_role if body.add_generation_prompt else str(body.messages[-1].get("role", response_role))


class ChatAnswer:
    """Builds the answer to one request, whole or in events.

    Attributes:
        name, model: the answer's id and the model's name.
        hides_reasoning: reasoning is omitted, and so are token ids and log-probabilities, which would reveal it.

    Args:
        metrics: what the server measured that generated the answer; None if it is this one.
    """

    def __init__(
        self,
        frontend: Frontend,
        body: ChatCompletionRequest,
        name: str,
        model: str,
        *,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._frontend = frontend
        self._body = body
        self.name, self.model = name, model
        self._params = chat_params(body, frontend.engine.input_processor.default_sampling_params())
        self._conversation = conversation_of(body, body.messages)
        if self._conversation.is_forced and self._params.structured_outputs is not None:
            raise InvalidRequestError("tool_choice: a forced call cannot be combined with a response format.")
        self._num_top = -1 if body.logprob_token_ids else body.top_logprobs or 0
        self._role = answer_role(body, frontend.settings.response_role)
        check_repeated_text(len(self._role) + len(self._echo()), self._params.n, "echo")
        self._usage = UsageCounter(1, frontend.settings.enable_prompt_tokens_details)
        self._usage_mode = UsageMode.of(body.stream_options, frontend.settings)
        self.hides_reasoning = not body.include_reasoning and frontend.formats().reasoning is not None
        self._has_token_ids = bool(body.return_token_ids) and not self.hides_reasoning
        self._has_details = not self.hides_reasoning and (self._params.logprobs is not None or self._has_token_ids)
        self._is_brief = not self._usage_mode.is_continuous  # an event of text holds nothing else that changes
        self._text_events: dict[tuple[int, str], TextEvents] = {}
        self._is_begun = False
        self._given_metrics = metrics
        created = int(time.time())
        self._new_chunk = partial(ChatChunk, name, created, model, system_fingerprint=frontend.fingerprint)
        self._new_completion = partial(ChatCompletion, name, created, model, system_fingerprint=frontend.fingerprint)

    async def start(self, run: Callable[[Callable[[], ChatTurn]], Awaitable[ChatTurn]] | None = None) -> ChatTurn:
        """Render the conversation; generation starts when the turn's updates are iterated.

        Args:
            run: does what may take long if the request is large; None does it at once.
        """
        body = self._body
        prompt = await render(self._frontend, self._conversation)
        prompt["prompt_token_ids"] = truncate(self._frontend, body, prompt["prompt_token_ids"])
        check_prompt_entries(self._params, len(prompt["prompt_token_ids"]), self._frontend.engine.info.vocab_size)
        begin = partial(
            ChatTurn,
            self._frontend,
            self._conversation,
            prompt,
            self._params,
            self.name,
            priority=body.priority,
            cache_salt=body.cache_salt,
            length_penalty=beam_length_penalty(body),
        )
        return begin() if run is None else await run(begin)

    async def whole(self, turn: ChatTurn) -> list[bytes]:
        """The answer as JSON, in pieces."""
        gathered = await gather(turn)
        return await pieces.write(self.num_entries(gathered), partial(self.completion, turn, gathered))

    def num_entries(self, gathered: Gathered) -> int:
        """How long the lists of an answer are, in all."""
        output, answers = gathered
        completions = [update.completion for update, _ in answers.values()]
        return pieces.num_entries(output.prompt_logprobs) + sum(
            len(completion.token_ids) * self._has_token_ids
            + pieces.num_entries(completion.logprobs)
            + num_expert_entries(completion)
            for completion in completions
        )

    def completion(self, turn: ChatTurn, gathered: Gathered, write: ListWriter = list) -> ChatCompletion:
        """The answer, once it is whole.

        Args:
            write: takes its long lists.
        """
        output, answers = gathered
        self._usage.add_output(0, output)
        self._count_reasoning_tokens(turn)
        choices = [
            ChatChoice(
                index,
                self._message(answer),
                self._logprobs(update.completion, write),
                update.finish_reason,
                update.completion.stop_reason,
                list(update.completion.token_ids) if self._has_token_ids else None,
                routed_experts(update.completion),
            )
            for index, (update, answer) in sorted(answers.items())
        ]
        completion = self._new_completion(choices, self._usage.usage())
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            completion.prompt_logprobs = write(finite_prompt_logprobs(output.prompt_logprobs))
        if self._body.return_token_ids:
            completion.prompt_token_ids = output.prompt_token_ids or []
        if self._body.return_prompt_text:
            completion.prompt_text = turn.prompt.get("prompt", "")
        if self._given_metrics is not None:
            completion.metrics = self._given_metrics
        elif self._frontend.settings.enable_per_request_metrics:
            completion.metrics = request_metrics(output, self._params.n)
        return completion

    def _count_reasoning_tokens(self, turn: ChatTurn) -> None:
        if self._frontend.formats().reasoning is not None:
            self._usage.num_reasoning = turn.num_reasoning_tokens

    def _message(self, answer: AssistantAnswer) -> ChatMessage:
        content = answer.content
        is_text = not answer.tool_calls and answer.reasoning is None
        if content is not None or is_text or self._echo():
            content = self._echo() + (content or "")
        message = ChatMessage(self._role, content)
        if self._body.include_reasoning:
            message.reasoning = answer.reasoning
        if answer.tool_calls:
            message.tool_calls = [
                ToolCallInfo(call.call_id, FunctionCall(call.name, call.arguments)) for call in answer.tool_calls
            ]
        return message

    async def events(self, turn: ChatTurn, send: Send) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; those that say only a token's text go out by ``send`` on the spot."""
        take_text = None if self._has_details else direct_writer(send, partial(self._text_event, turn))
        async with aclosing(turn.outputs(take_text)) as outputs:
            output: RequestOutput | None = None
            async for output in outputs:
                if data := self._events(turn, output):
                    yield data
        if self._usage_mode.is_sent or self._frontend.settings.enable_per_request_metrics:
            yield encode_event(self._closing(turn, output))

    def _closing(self, turn: ChatTurn, output: RequestOutput | None) -> ChatChunk:
        """The event after the answer: usage and metrics."""
        chunk = self._new_chunk([])
        if self._usage_mode.is_sent:
            chunk.usage = self._usage.usage()
        if output is not None and self._frontend.settings.enable_per_request_metrics:
            chunk.metrics = request_metrics(output, self._params.n, StreamedMetrics)
        return chunk

    def _events(self, turn: ChatTurn, output: RequestOutput) -> bytes:
        """Events with the new parts; the first of each choice has the role."""
        self._count_reasoning_tokens(turn)
        self._usage.add_output(0, output, counts_output=False)
        events = [] if self._is_begun else self._openings(turn, output)
        self._usage.add_output(0, output)
        self._is_begun = True
        for update in turn.read(output):
            if update.finish_reason is None and not self._has_details:
                events.append(self._parts_event(update.completion.index, update.parts))
            else:
                choice = self._chunk_choice(update, self._delta(update.parts) or ChatDelta())
                events.append(self._event(choice))
        return b"".join(events)

    def _text_event(self, turn: ChatTurn, index: int, token_id: int, text: str) -> bytes:
        """The event with the text that a token adds to a choice."""
        self._usage.add_token(index)
        if turn.is_bare and self._is_brief:
            return self._bare_event(index, "content", text) if text else b""
        return self._parts_event(index, turn.read_text(index, text, (token_id,)))

    def _parts_event(self, index: int, parts: Sequence[AnswerPart]) -> bytes:
        """The event with an unfinished choice's new parts; empty if there are none."""
        if self._is_brief and len(parts) == 1:
            (part,) = parts
            if isinstance(part, ContentText):
                return self._bare_event(index, "content", part.text)
            if isinstance(part, ReasoningText) and self._body.include_reasoning:
                return self._bare_event(index, "reasoning", part.text)
        delta = self._delta(parts)
        return b"" if delta is None else self._event(ChatChunkChoice(index, delta))

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return encode_event(self._new_chunk([choice], usage=self._usage_mode.within(self._usage, 0, choice.index)))

    def _bare_event(self, index: int, kind: Literal["content", "reasoning"], text: str) -> bytes:
        events = self._text_events.get((index, kind))
        if events is None:
            mark = TextEvents.MARK
            delta = ChatDelta(content=mark) if kind == "content" else ChatDelta(reasoning=mark)
            events = TextEvents(self._event(ChatChunkChoice(index, delta)))
            self._text_events[index, kind] = events
        return events.event(text)

    def _delta(self, parts: Sequence[AnswerPart]) -> ChatDelta | None:
        """What is new, or None if nothing is; one entry per tool call, since some clients keep only the last."""
        delta = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        is_empty = True
        for part in parts:
            match part:
                case ContentText(text):
                    delta.content = (delta.content or "") + text
                case ReasoningText(text):
                    if not self._body.include_reasoning:
                        continue
                    delta.reasoning = (delta.reasoning or "") + text
                case ToolCallBegin(index, name, call_id):
                    calls[index] = ToolCallDelta(index, call_id, "function", FunctionCall(name, ""))
                case ToolCallArguments(index, text):
                    call = calls.setdefault(index, ToolCallDelta(index, function=FunctionCall(None, "")))
                    assert call.function is not None
                    call.function.arguments = (call.function.arguments or "") + text
            is_empty = False
        delta.tool_calls = list(calls.values())
        return None if is_empty else delta

    def _openings(self, turn: ChatTurn, output: RequestOutput) -> list[bytes]:
        delta = ChatDelta(self._role, self._echo())
        chunks = [
            self._new_chunk([ChatChunkChoice(index, delta)], usage=self._usage_mode.within(self._usage, 0, index))
            for index in range(self._params.n)
        ]
        if self._body.return_token_ids:
            chunks[0].prompt_token_ids = output.prompt_token_ids or []
        if self._body.return_prompt_text:
            chunks[0].prompt_text = turn.prompt.get("prompt", "")
        return [encode_event(chunk) for chunk in chunks]

    def _chunk_choice(self, update: ChatUpdate, delta: ChatDelta) -> ChatChunkChoice:
        completion = update.completion
        choice = ChatChunkChoice(completion.index, delta, self._logprobs(completion), update.finish_reason)
        if update.finish_reason is not None:
            choice.stop_reason = completion.stop_reason
        if self._has_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _echo(self) -> str:
        last = self._body.messages[-1]
        content = last.get("content")
        return content if self._body.echo and last.get("role") == self._role and isinstance(content, str) else ""

    def _logprobs(self, completion: CompletionOutput, write: ListWriter = list) -> ChatLogprobs | None:
        if self.hides_reasoning or not self._body.logprobs or completion.logprobs is None:
            return None
        positions = chat_logprobs(
            completion.token_ids,
            completion.logprobs,
            self._num_top,
            self._frontend.engine.tokenizer,
            bool(self._body.return_tokens_as_token_ids or self._frontend.settings.return_tokens_as_token_ids),
        )
        return ChatLogprobs(write(positions))
