"""``/v1/chat/completions/batch``: several conversations in one request, answered side by side."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET
from pydantic import Field, ValidationError
from starlette.types import Send

from octavo.api import pieces
from octavo.api.answer_size import PromptBudget
from octavo.api.chat.turn import ChatTurn, gather
from octavo.api.frontend import Frontend, answer_id
from octavo.api.openai.answers import ChatCompletion
from octavo.api.openai.chat import ChatAnswer
from octavo.api.openai.protocol import ChatCompletionRequest
from octavo.api.openai.sampling import MAX_SEQUENCES, refuse_unsupported
from octavo.api.pieces import ListWriter
from octavo.api.request_body import Objects, RequestModel
from octavo.api.usage import PromptTokensDetails
from octavo.api.watched import STARTED_AT_ONCE, WatchedResponse, send_json
from octavo.errors import InvalidRequestError

Result = TypeVar("Result")


class BatchChatRequest(RequestModel):
    """Body of ``POST /v1/chat/completions/batch``: the fields of a chat, with a list of conversations."""

    extras_are_read = True

    messages: Annotated[
        list[Annotated[Objects, Field(min_length=1)]],
        Field(min_length=1, max_length=MAX_SEQUENCES, fail_fast=True),
    ]


def chat_batch_router(frontend: Frontend) -> APIRouter:
    """The route that answers several conversations."""
    router = frontend.json_router("chat", "/v1/chat/completions/batch")

    @router.post("", summary="Answer several conversations.")
    async def create_chat_completions(body: BatchChatRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        requests = conversations_of(body)
        name = answer_id("chatcmpl", request, requests[0].request_id)
        started: list[tuple[ChatAnswer, ChatTurn]] = []
        budget = PromptBudget()
        for one in requests:
            answer = ChatAnswer(frontend, one, name, model)
            turn = await answer.start()
            budget.add_prompt(len(turn.prompt["prompt_token_ids"]))
            started.append((answer, turn))

        async def work(send: Send) -> None:
            gathered = await side_by_side([gather(turn) for _, turn in started])
            answers = [(answer, turn, one) for (answer, turn), one in zip(started, gathered, strict=True)]
            num_entries = len(answers) + sum(answer.num_entries(one) for answer, _, one in answers)

            def build(write: ListWriter) -> ChatCompletion:
                return joined([answer.completion(turn, one, write) for answer, turn, one in answers])

            await send_json(send, await pieces.write(num_entries, build))

        return WatchedResponse(work, frontend.drain)

    return router


def conversations_of(body: BatchChatRequest) -> list[ChatCompletionRequest]:
    """One request for each conversation."""
    shared: dict[str, Any] = dict(body.model_extra or {})
    for name in ("stream", "stream_options", "tools", "prompt_logprobs"):
        if shared.get(name) not in (None, False, []):
            raise InvalidRequestError(f"{name}: batches of conversations do not support this field.", name)
    if shared.get("tool_choice") not in (None, "none"):
        raise InvalidRequestError("tool_choice: batches of conversations call no tools; leave it out.", "tool_choice")
    try:
        first = ChatCompletionRequest.model_validate({**shared, "messages": body.messages[0]})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    refuse_unsupported(first)
    num_answers = len(body.messages) * (first.n or 1)
    if num_answers > MAX_SEQUENCES:
        raise InvalidRequestError(
            f"One request may generate at most {MAX_SEQUENCES} answers, got {num_answers}.", "messages"
        )
    return [first.model_copy(update={"messages": messages}) for messages in body.messages]


def joined(completions: Sequence[ChatCompletion]) -> ChatCompletion:
    """All answers in one: answer ``i`` of conversation ``c`` is choice ``c · n + i``."""
    whole = completions[0]
    num_cached = sum(
        one.usage.prompt_tokens_details.cached_tokens for one in completions if one.usage.prompt_tokens_details
    )
    if len(completions) > 1:
        whole.metrics = UNSET
        whole.prompt_token_ids, whole.prompt_text = None, UNSET  # each conversation has its own
    for completion in completions[1:]:
        whole.choices += completion.choices
        whole.usage.prompt_tokens += completion.usage.prompt_tokens
        whole.usage.completion_tokens += completion.usage.completion_tokens
        whole.usage.total_tokens += completion.usage.total_tokens
    for index, choice in enumerate(whole.choices):
        choice.index = index
    if whole.usage.prompt_tokens_details:
        whole.usage.prompt_tokens_details = PromptTokensDetails(num_cached)
    return whole


async def side_by_side(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results; the first exception, or a cancellation, ends all of the works."""
    tasks: list[asyncio.Task[Result]] = []
    try:
        for work in works:
            tasks.append(asyncio.create_task(work))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn
        return list(await asyncio.gather(*tasks))
    finally:
        for work in works[len(tasks) :]:
            work.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
