"""Between the protocols and tokens: ``render`` makes token ids of requests, ``derender`` answers of generated tokens.

Answers are made by the routes' own code, on an engine that replays the given tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import Field

from octavo.api.anthropic.messages import start_message
from octavo.api.anthropic.protocol import MessagesRequest
from octavo.api.chat.formats import AnswerFormats
from octavo.api.chat.rendered import rendered_request, rendered_turn
from octavo.api.frontend import Frontend, answer_id
from octavo.api.json_body import in_thread_if_large
from octavo.api.middleware import clean_request_id
from octavo.api.openai.chat import ChatAnswer, start_chat
from octavo.api.openai.completions import CompletionAnswer, token_ids_of
from octavo.api.openai.protocol import ChatCompletionRequest, CompletionRequest
from octavo.api.openai.sampling import completion_params, completion_prompts, engine_prompts, refuse_unsupported
from octavo.api.pieces import ENCODER, json_answer
from octavo.api.request_body import RequestModel, TokenIds
from octavo.api.scale_out.replay import GivenResponse, ReplayEngine, at_most_max_responses
from octavo.api.watched import last_items
from octavo.errors import InvalidRequestError

Item = TypeVar("Item")
_SETTLED = {"stream": False, "stream_options": None}


def render_router(frontend: Frontend) -> APIRouter:
    """One route beside each protocol's own."""
    router = frontend.json_router("tokens")

    @router.post("/v1/chat/completions/render", summary="The tokens of a conversation.")
    async def render_chat(body: ChatCompletionRequest, request: Request) -> Response:
        answer, turn = await start_chat(frontend, body, request)
        has_reasoning = bool(body.include_reasoning)
        return json_answer(
            rendered_turn(turn, answer.name, answer.model, body, body.stream_options, include_reasoning=has_reasoning)
        )

    @router.post("/v1/messages/render", summary="The tokens of a conversation in Anthropic's protocol.")
    async def render_message(body: MessagesRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        name = answer_id("msg", request, None)
        _, turn = await start_message(frontend, body, name, request)
        return json_answer(rendered_turn(turn, name, model, body))

    @router.post("/v1/completions/render", summary="The tokens of one or several prompts.")
    async def render_completion(body: CompletionRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        refuse_unsupported(body)
        name = answer_id("cmpl", request, body.request_id)
        params = completion_params(body, frontend.engine.input_processor.default_sampling_params())
        prompts = completion_prompts(body)
        made = await engine_prompts(frontend, body, prompts, body.add_special_tokens, are_counted=True)

        def render() -> bytes:
            rendered = [
                rendered_request(token_ids_of(prompt), params, f"{name}-{index}", model, body, body.stream_options)
                for index, prompt in enumerate(made)
            ]
            return ENCODER.encode(rendered)

        return json_answer(await in_thread_if_large(request, render))

    return router


class DerenderChatRequest(RequestModel):
    """Body of ``POST /v1/chat/completions/derender``."""

    generate_response: GivenResponse
    stream: Literal[False] = False
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    prompt_token_ids: TokenIds | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(RequestModel):
    """Body of ``POST /v1/completions/derender``."""

    generate_responses: Annotated[
        list[GivenResponse], Field(min_length=1, fail_fast=True), at_most_max_responses("generate_responses")
    ]
    stream: Literal[False] = False
    prompt_tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] | None = None
    prompt_token_ids: Annotated[list[TokenIds | None], Field(fail_fast=True)] | None = None
    completion_request: CompletionRequest | None = None


def derender_router(frontend: Frontend) -> APIRouter:
    """One route beside each protocol's own."""
    router = frontend.json_router("tokens")

    @cache
    def needs_parsing() -> bool:
        """Whether parsers are chosen, other than the one for models that only the prompt teaches tool calls."""
        engine = frontend.engine
        formats = AnswerFormats.choose(engine.model_settings, frontend.settings, engine.tokenizer)
        return formats.needs_parsing(with_tools=True)

    @router.post("/v1/chat/completions/derender", summary="A conversation's answer from its tokens.")
    async def derender_chat(body: DerenderChatRequest) -> Response:
        model = frontend.check_model(body.model)
        frontend.need_tokenizer()
        given = body.generate_response
        settings, count = frontend.settings, body.prompt_tokens
        if body.chat_request is None:
            # Without the request, calls cannot be distinguished from text that looks like one.
            settings = msgspec.structs.replace(settings, tool_call_parser="")
            count = count or 0
        is_parsed = body.chat_request is not None
        engine = ReplayEngine(frontend.engine, [given], [body.prompt_token_ids], [count], is_parsed=is_parsed)
        if not is_parsed and needs_parsing():
            raise InvalidRequestError(
                "chat_request is needed, because this server has parsers: without it, reasoning and tool calls "
                "cannot be distinguished from text.",
                "chat_request",
            )
        request = body.chat_request or _bare_chat_request(given)
        asks = {} if "logprobs" in request.model_fields_set else _logprobs_given(given)
        request = request.model_copy(update={**_SETTLED, **asks})
        refuse_unsupported(request)
        name = clean_request_id(given.request_id) or "chatcmpl"
        other = replace(frontend, engine=engine, settings=settings, _formats=[])
        answer = ChatAnswer(other, request, name, model, metrics=given.metrics)
        return json_answer(b"".join(await answer.whole(await answer.start())))

    @router.post("/v1/completions/derender", summary="Completions from their tokens.")
    async def derender_completion(body: DerenderCompletionRequest) -> Response:
        model = frontend.check_model(body.model)
        frontend.need_tokenizer()
        responses = body.generate_responses
        prompts = _one_each("prompt_token_ids", body.prompt_token_ids, len(responses))
        counts = _one_each("prompt_tokens", body.prompt_tokens, len(responses))
        request = body.completion_request
        if request is None:
            tops = [num_top for response in responses if (num_top := response.num_top_logprobs) is not None]
            request = CompletionRequest(prompt=[[0]] * len(responses), logprobs=max(tops, default=None))
            counts = [count or 0 for count in counts]
        elif len(completion_prompts(request)) != len(responses):
            raise InvalidRequestError(
                "completion_request: it must have one prompt for each of the generate_responses.", "completion_request"
            )
        engine = ReplayEngine(frontend.engine, responses, prompts, counts)
        request = request.model_copy(update=_SETTLED)
        refuse_unsupported(request)
        name = clean_request_id(responses[0].request_id) or "cmpl"
        metrics = responses[0].metrics if len(responses) == 1 else None
        answer = CompletionAnswer(replace(frontend, engine=engine), request, name, model, metrics=metrics)
        sources = answer.outputs(await answer.start())
        return json_answer(b"".join(await answer.whole(await last_items(sources))))

    return router


def _bare_chat_request(given: GivenResponse) -> ChatCompletionRequest:
    """A request that asks for what the response has."""
    prompt_logprobs = None if given.prompt_logprobs is None else 0
    messages = [{"role": "user", "content": ""}]
    return ChatCompletionRequest(messages=messages, prompt_logprobs=prompt_logprobs, **_logprobs_given(given))


def _logprobs_given(given: GivenResponse) -> dict[str, Any]:
    num_top = given.num_top_logprobs
    return {"logprobs": num_top is not None, "top_logprobs": num_top}


def _one_each(name: str, given: list[Item] | None, num: int) -> Sequence[Item | None]:
    """One entry for each response, None where nothing is known."""
    if given is None:
        return [None] * num
    if len(given) != num:
        raise InvalidRequestError(f"{name}: there must be one entry for each of the {num} responses.", name)
    return given
