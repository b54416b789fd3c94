"""``/tokenize`` and ``/detokenize``."""

import asyncio
from functools import partial

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.api.chat.conversation import render
from octavo.api.frontend import SHORT_TEXT, Frontend
from octavo.api.json_body import in_thread_if_large
from octavo.api.openai.chat import conversation_of
from octavo.api.openai.protocol import DetokenizeRequest, TokenizeRequest
from octavo.api.pieces import json_answer
from octavo.errors import InvalidRequestError


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


def tokens_router(frontend: Frontend) -> APIRouter:
    """Routes between text and token ids."""
    router = frontend.json_router("tokens")

    @router.post("/tokenize", summary="Token ids of a text or a conversation.")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        frontend.check_model(body.model)
        tokenizer = frontend.need_tokenizer()
        token_ids = await _token_ids(frontend, body, request)
        answer = TokenizeAnswer(len(token_ids), frontend.engine.info.max_model_len, token_ids)

        def encode() -> bytes:
            if body.return_token_strs:
                answer.token_strs = tokenizer.convert_ids_to_tokens(token_ids)
            return msgspec.json.encode(answer)

        is_long = len(token_ids) > SHORT_TEXT
        return json_answer(await asyncio.to_thread(encode) if is_long else encode())

    @router.post("/detokenize", summary="The text of token ids.")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        frontend.check_model(body.model)
        text = await in_thread_if_large(request, partial(frontend.text_of, body.tokens))
        return json_answer(DetokenizeAnswer(text))

    return router


async def _token_ids(frontend: Frontend, body: TokenizeRequest, request: Request) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("Give either prompt or messages.", "prompt")
    if body.messages is not None:
        conversation = await in_thread_if_large(request, partial(conversation_of, body, body.messages))
        return (await render(frontend, conversation))["prompt_token_ids"]
    assert body.prompt is not None
    return await frontend.encode(body.prompt, body.add_special_tokens is not False)
