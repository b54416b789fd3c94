"""``/v1/messages``: chat completions in Anthropic's protocol."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api.anthropic.blocks import BlockWriter, gather_blocks
from octavo.api.anthropic.conversation import conversation_of
from octavo.api.anthropic.events import (
    BlockEvent,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageTokensDetails,
    MessageUsage,
    Ping,
    StopDelta,
    TokenCount,
    encode_event,
    error_event,
)
from octavo.api.anthropic.protocol import CountTokensRequest, MessagesRequest
from octavo.api.chat.conversation import Conversation, render
from octavo.api.chat.turn import ChatTurn, ChatUpdate
from octavo.api.frontend import Frontend, answer_id
from octavo.api.json_body import in_thread_if_large
from octavo.api.pieces import ENCODER, json_answer
from octavo.api.watched import WatchedResponse, direct_writer, send_json
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.records import RequestOutputKind, SamplingParams


def messages_router(frontend: Frontend) -> APIRouter:
    """The routes that answer conversations and count their tokens."""
    router = frontend.json_router("messages", "/v1/messages")

    @router.post("", summary="Answer a conversation.")
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        name = answer_id("msg", request, None)
        conversation, turn = await start_message(frontend, body, name, request)
        answer = AnthropicAnswer(frontend, body, conversation, turn, name, model)

        async def work(send: Send) -> None:
            if body.stream:
                describe = partial(error_event, scope=request.scope)
                await frontend.send_events(send, answer.events(send), done=b"", describe=describe)
            else:
                await send_json(send, await answer.whole())

        return WatchedResponse(work, frontend.drain)

    @router.post("/count_tokens", summary="How many tokens a conversation's prompt has.")
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        frontend.check_model(body.model)
        effort = frontend.settings.anthropic_disabled_thinking_effort
        conversation = await in_thread_if_large(request, partial(conversation_of, body, effort))
        prompt = await render(frontend, conversation)
        return json_answer(TokenCount(len(prompt["prompt_token_ids"])))

    return router


async def start_message(
    frontend: Frontend, body: MessagesRequest, name: str, request: Request
) -> tuple[Conversation, ChatTurn]:
    """The conversation and the turn that answers it; generation starts when its updates are iterated."""
    effort = frontend.settings.anthropic_disabled_thinking_effort
    conversation = await in_thread_if_large(request, partial(conversation_of, body, effort))
    params = message_params(body, frontend.engine.input_processor.default_sampling_params())
    prompt = await render(frontend, conversation)
    # Clients ask for all that a model of Anthropic's might say; what the context holds must do.
    room = frontend.engine.info.max_model_len - len(prompt["prompt_token_ids"])
    if 0 < room < body.max_tokens:
        params.max_tokens = room
    begin = partial(ChatTurn, frontend, conversation, prompt, params, name)
    turn = await in_thread_if_large(request, partial(begin, priority=body.priority, cache_salt=body.cache_salt))
    return conversation, turn


def message_params(body: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a message."""
    fields = {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "extra_args": body.vllm_xargs,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    try:
        return msgspec.structs.replace(defaults, **given, output_kind=kind)
    except InvalidRequestError as error:
        if error.param != "stop":
            raise
        raise InvalidRequestError(f"stop_sequences: {error}", "stop_sequences") from None


class AnthropicAnswer:
    """Builds the answer to one request, whole or in events."""

    def __init__(
        self,
        frontend: Frontend,
        body: MessagesRequest,
        conversation: Conversation,
        turn: ChatTurn,
        name: str,
        model: str,
    ) -> None:
        self._frontend = frontend
        self._turn = turn
        self._stop_sequences = frozenset(body.stop_sequences or ())
        is_clipped = turn.params.max_tokens != body.max_tokens
        self._length_reason = "model_context_window_exceeded" if is_clipped else "max_tokens"
        self._writer = BlockWriter(
            is_parallel=conversation.is_parallel,
            shows_thinking=body.thinking is None or body.thinking.display != "omitted",
        )
        self._num_output = 0
        self._new_message = partial(Message, id=name, model=model)

    async def whole(self) -> bytes:
        """The answer as JSON."""
        events: list[BlockEvent] = []
        last: ChatUpdate | None = None
        async with aclosing(self._turn.updates()) as updates:
            async for update in updates:
                events += self._block_events(update)
                last = update
        assert last is not None, "an engine says at least how a request ended"
        stop = self._stop(last)
        usage = await self._final_usage(last)
        content = gather_blocks(events)
        message = self._new_message(
            content=content, stop_reason=stop.stop_reason, stop_sequence=stop.stop_sequence, usage=usage
        )
        return ENCODER.encode(message)

    async def events(self, send: Send) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; those that say only a token's text go out by ``send`` on the spot."""
        last: ChatUpdate | None = None
        async with aclosing(self._turn.updates(direct_writer(send, self._text_events))) as updates:
            async for update in updates:
                if last is None:
                    # As in vLLM, the first event counts the whole prompt; the last one splits off cached tokens.
                    usage = MessageUsage(len(update.output.prompt_token_ids or ()), 0, 0, self._num_output)
                    message = self._new_message(content=[], stop_reason=None, stop_sequence=None, usage=usage)
                    yield encode_event(MessageStart(message)) + encode_event(Ping())
                last = update
                events = self._block_events(update)
                if events:
                    yield b"".join(map(encode_event, events))
        assert last is not None, "an engine says at least how a request ended"
        yield encode_event(MessageDelta(self._stop(last), await self._final_usage(last))) + encode_event(MessageStop())

    def _text_events(self, index: int, token_id: int, text: str) -> bytes:
        self._num_output += 1
        parts = self._turn.read_text(index, text, (token_id,))
        return b"".join([encode_event(event) for part in parts for event in self._writer.add_part(part)])

    def _block_events(self, update: ChatUpdate) -> list[BlockEvent]:
        self._num_output += len(update.completion.token_ids)
        events = [event for part in update.parts for event in self._writer.add_part(part)]
        return events + self._writer.flush() if update.finish_reason is not None else events

    def _stop(self, last: ChatUpdate) -> StopDelta:
        """Why the message ended."""
        match last.finish_reason:
            case "length":
                return StopDelta(self._length_reason, None)
            case "stop" | "tool_calls":
                if last.completion.stop_reason in self._stop_sequences:
                    return StopDelta("stop_sequence", str(last.completion.stop_reason))
                return StopDelta("tool_use" if self._writer.num_tool_uses else "end_turn", None)
            case _:
                raise RequestFailedError("The answer was aborted.")

    def _usage(self, update: ChatUpdate) -> MessageUsage:
        num_prompt = len(update.output.prompt_token_ids or ())
        if not self._frontend.settings.enable_prompt_tokens_details:
            return MessageUsage(num_prompt, 0, 0, self._num_output)
        num_cached, num_created = update.output.num_cached_tokens or 0, 0
        info = self._frontend.engine.info
        if info.supports_prefix_caching:
            num_created = max(0, num_prompt // info.block_size * info.block_size - num_cached)
        return MessageUsage(num_prompt - num_cached - num_created, num_created, num_cached, self._num_output)

    async def _final_usage(self, last: ChatUpdate) -> MessageUsage:
        usage = self._usage(last)
        if self._writer.thinking:
            # Tokens do not say to which part they belong; those of the text alone are as many, but for the tags.
            num_thinking = len(await self._frontend.encode(self._writer.thinking, add_special_tokens=False))
            usage.output_tokens_details = MessageTokensDetails(min(num_thinking, usage.output_tokens))
        return usage
