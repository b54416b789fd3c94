"""``/v1/chat/completions``: a conversation goes on."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from starlette.types import Send

from octavo.api.frontend import Frontend, answer_id, engine_id
from octavo.api.json_body import json_route
from octavo.api.openai.logprobs import chat_logprobs, finite_prompt_logprobs
from octavo.api.openai.protocol import ChatCompletionRequest, TokenizeRequest
from octavo.api.openai.responses import (
    ENCODER,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    event,
)
from octavo.api.openai.sampling import chat_params, refuse_unsupported, truncate
from octavo.api.openai.usage import UsageCounter, UsageMode
from octavo.api.watched import WatchedResponse, last_items, send_events, send_json
from octavo.errors import ChatTemplateError, InvalidRequestError
from octavo.records import CompletionOutput, RequestOutput, TokensPrompt


def chat_router(frontend: Frontend) -> APIRouter:
    """The route that answers conversations."""
    route_class = json_route(frontend.settings.max_request_bytes)
    router = APIRouter(prefix="/v1/chat/completions", tags=["chat"], route_class=route_class)

    @router.post("", summary="Answer a conversation.")
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        refuse_unsupported(body)
        refuse_forced_tools(body)
        answer = ChatAnswer(frontend, body, answer_id("chatcmpl", request, body.request_id), model)
        source = await answer.start()

        async def work(send: Send) -> None:
            if body.stream:
                await send_events(send, answer.events(source), frontend.drain)
            else:
                await send_json(send, answer.whole((await last_items([source]))[0]))

        return WatchedResponse(work, frontend.drain)

    return router


def refuse_forced_tools(body: ChatCompletionRequest) -> None:
    """Refuse what would force the model to call a tool.

    Raises:
        InvalidRequestError: naming ``tool_choice``.
    """
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequestError(
            "tool_choice: making the model call a tool is not supported yet; use 'auto' or 'none'.", "tool_choice"
        )


async def render(
    frontend: Frontend, body: ChatCompletionRequest | TokenizeRequest, messages: list[dict[str, Any]]
) -> TokensPrompt:
    """The conversation as the model reads it; templates run in a thread, since they may be slow.

    Raises:
        ChatTemplateError: there is no template, or it failed.
    """
    renderer = frontend.engine.chat_renderer
    if renderer is None:
        raise ChatTemplateError("This model has no chat template; use /v1/completions or give one to the server.")
    return await asyncio.to_thread(
        renderer.render,
        messages,
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
        add_special_tokens=bool(body.add_special_tokens),
    )


def answer_role(body: ChatCompletionRequest, response_role: str) -> str:
    """Whose turn the answer is: a new one, or the last message's if that is continued."""
    return response_role if body.add_generation_prompt else str(body.messages[-1].get("role", response_role))


class ChatAnswer:
    """Builds the answer to one request, whole or in events."""

    def __init__(self, frontend: Frontend, body: ChatCompletionRequest, answer: str, model: str) -> None:
        self._frontend = frontend
        self._body = body
        self._id = answer
        self._params = chat_params(body, frontend.engine.input_processor.default_sampling_params())
        self._num_top = body.top_logprobs or 0
        self._role = answer_role(body, frontend.settings.response_role)
        self._usage = UsageCounter(1, frontend.settings.enable_prompt_tokens_details)
        created = int(time.time())
        self._new_chunk = partial(ChatChunk, answer, created, model)
        self._new_completion = partial(ChatCompletion, answer, created, model)

    async def start(self) -> AsyncGenerator[RequestOutput, None]:
        """The generator of outputs; nothing runs before it is iterated."""
        body = self._body
        prompt = await render(self._frontend, body, body.messages)
        prompt["prompt_token_ids"] = truncate(self._frontend, body, prompt["prompt_token_ids"])
        return self._frontend.engine.generate(
            prompt,
            self._params,
            engine_id(self._id, 0),
            priority=body.priority,
            cache_salt=body.cache_salt,
            clip_max_tokens=False,
        )

    def whole(self, output: RequestOutput) -> bytes:
        """The answer as JSON, from the final output."""
        self._usage.add(0, output)
        choices = [
            ChatChoice(
                completion.index,
                ChatMessage(self._role, self._echo() + completion.text),
                self._logprobs(completion),
                completion.finish_reason,
                completion.stop_reason,
                list(completion.token_ids) if self._body.return_token_ids else UNSET,
            )
            for completion in output.outputs
        ]
        answer = self._new_completion(choices, self._usage.usage())
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            answer.prompt_logprobs = finite_prompt_logprobs(output.prompt_logprobs)
        if self._body.return_token_ids:
            answer.prompt_token_ids = output.prompt_token_ids or []
        return ENCODER.encode(answer)

    async def events(self, source: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, as outputs come; the first of each choice tells the role."""
        usage_mode = UsageMode.of(self._body, self._frontend.settings)
        has_details = self._params.logprobs is not None or bool(self._body.return_token_ids)
        is_begun = False
        async with aclosing(source) as outputs:
            async for output in outputs:
                self._usage.add(0, output)
                if not is_begun:
                    is_begun = True
                    for opening in self._openings(output, usage_mode):
                        yield opening
                for completion in output.outputs:
                    if completion.text or completion.finish_reason is not None or has_details:
                        choice = self._chunk_choice(completion)
                        yield event(self._new_chunk([choice], usage=usage_mode.within(self._usage)))
        if usage_mode.is_sent:
            yield event(self._new_chunk([], usage=self._usage.usage()))

    def _openings(self, output: RequestOutput, usage_mode: UsageMode) -> list[bytes]:
        delta = ChatDelta(self._role, self._echo())
        chunks = [
            self._new_chunk([ChatChunkChoice(index, delta)], usage=usage_mode.within(self._usage))
            for index in range(self._params.n)
        ]
        if self._body.return_token_ids:
            chunks[0].prompt_token_ids = output.prompt_token_ids or []
        return [event(chunk) for chunk in chunks]

    def _chunk_choice(self, completion: CompletionOutput) -> ChatChunkChoice:
        choice = ChatChunkChoice(
            completion.index, ChatDelta(None, completion.text), self._logprobs(completion), completion.finish_reason
        )
        if completion.finish_reason is not None:
            choice.stop_reason = completion.stop_reason
        if self._body.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _echo(self) -> str:
        last = self._body.messages[-1]
        content = last.get("content")
        return content if self._body.echo and last.get("role") == self._role and isinstance(content, str) else ""

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not self._body.logprobs or completion.logprobs is None:
            return None
        return chat_logprobs(
            completion.token_ids,
            completion.logprobs,
            self._num_top,
            self._frontend.engine.tokenizer,
            bool(self._body.return_tokens_as_token_ids),
        )
