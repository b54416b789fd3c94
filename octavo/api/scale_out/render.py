"""The render routes: requests to token ids for ``/inference/v1/generate``, without generation."""

from functools import partial

from fastapi import APIRouter, Request, Response

from octavo.api.anthropic.messages import start_message
from octavo.api.anthropic.protocol import MessagesRequest
from octavo.api.chat.rendered import rendered_request, rendered_turn
from octavo.api.frontend import Frontend, answer_id
from octavo.api.json_answer import ENCODER, json_answer
from octavo.api.json_body import in_thread_if_large
from octavo.api.openai.chat import ChatAnswer
from octavo.api.openai.completions import token_ids_of
from octavo.api.openai.protocol import ChatCompletionRequest, CompletionRequest
from octavo.api.openai.sampling import completion_params, completion_prompts, engine_prompts, refuse_unsupported


def render_router(frontend: Frontend) -> APIRouter:
    """One route beside each protocol's own."""
    router = frontend.json_router("tokens")

    @router.post("/v1/chat/completions/render", summary="The tokens of a conversation.")
    async def render_chat(body: ChatCompletionRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        refuse_unsupported(body)
        name = answer_id("chatcmpl", request, body.request_id)
        answer = await in_thread_if_large(request, partial(ChatAnswer, frontend, body, name, model))
        turn = await answer.start(partial(in_thread_if_large, request))
        rendered = rendered_turn(
            turn, name, model, body, body.stream_options, include_reasoning=bool(body.include_reasoning)
        )
        return json_answer(ENCODER.encode(rendered))

    @router.post("/v1/messages/render", summary="The tokens of a conversation in Anthropic's protocol.")
    async def render_message(body: MessagesRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        name = answer_id("msg", request, None)
        _, turn = await start_message(frontend, body, name, request)
        return json_answer(ENCODER.encode(rendered_turn(turn, name, model, body)))

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
