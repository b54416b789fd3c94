"""``/score`` and ``/rerank``."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from starlette.types import Send

from octavo.api.frontend import Frontend, answer_id, engine_id
from octavo.api.pieces import ENCODER
from octavo.api.pooling.inputs import LONG_TEXT, options_of, processor_of, prompt_usage
from octavo.api.pooling.protocol import (
    PooledListAnswer,
    RerankAnswer,
    RerankDocument,
    RerankRequest,
    RerankResult,
    RerankUsage,
    ScoreData,
    ScoreRequest,
    ScoringBody,
    TextObject,
)
from octavo.api.watched import WatchedResponse, send_json
from octavo.errors import InvalidRequestError
from octavo.inputs.scoring import Outputs, Score, ScoringOptions, make_pairs, proceed, score_pairs
from octavo.records import PoolingParams

_SIDES = (("data_1", "data_2"), ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"))


def scoring_router(frontend: Frontend) -> APIRouter:
    """Routes that compare texts."""
    router = frontend.json_router("scoring")

    @router.post("/score", summary="How well each pair of texts matches.")
    @router.post("/v1/score", summary="The same.")
    async def create_score(body: ScoreRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        pairs = make_pairs(*_sides(body))
        answer = answer_id("score", request, body.request_id)

        async def work(send: Send) -> None:
            scores = await _scores(frontend, body, answer, pairs)
            data = [ScoreData(index, score.value) for index, score in enumerate(scores)]
            num_tokens = sum(len(score.token_ids) for score in scores)
            usage = prompt_usage(frontend, num_tokens, sum(score.num_cached for score in scores))
            await send_json(send, ENCODER.encode(PooledListAnswer(answer, int(time.time()), model, data, usage)))

        return _watched(frontend, body, work)

    @router.post("/rerank", summary="Documents in the order of how well they match a query.")
    @router.post("/v1/rerank", summary="The same.")
    @router.post("/v2/rerank", summary="The same.")
    async def rerank(body: RerankRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        documents = _texts(body.documents, "documents")
        pairs = make_pairs([_text(body.query, "query")], documents)
        answer = answer_id("rerank", request, body.request_id)

        async def work(send: Send) -> None:
            scores = await _scores(frontend, body, answer, pairs)
            order = sorted(range(len(scores)), key=lambda index: -scores[index].value)[: body.top_n]
            shows = body.return_documents is not False
            results = [
                RerankResult(index, scores[index].value, RerankDocument(documents[index]) if shows else UNSET)
                for index in order
            ]
            num_tokens = sum(len(score.token_ids) for score in scores)
            await send_json(
                send, ENCODER.encode(RerankAnswer(answer, model, RerankUsage(num_tokens, num_tokens), results))
            )

        return _watched(frontend, body, work)

    return router


def _watched(frontend: Frontend, body: ScoringBody, work: Callable[[Send], Awaitable[None]]) -> Response:
    body.refuse_unsupported()
    _ = processor_of(frontend)
    return WatchedResponse(work, frontend.drain)


async def _scores(frontend: Frontend, body: ScoringBody, answer: str, pairs: list[tuple[str, str]]) -> list[Score]:
    """The scores of pairs; long texts are tokenised in a thread."""
    numbers = itertools.count()
    job = score_pairs(
        processor_of(frontend),
        pairs,
        lambda: engine_id(answer, next(numbers)),
        PoolingParams(use_activation=body.use_activation),
        ScoringOptions(options_of(body), body.max_tokens_per_query, body.max_tokens_per_doc),
    )
    is_long = sum(len(first) + len(second) for first, second in pairs) > LONG_TEXT
    outputs: Outputs | None = None
    while True:
        requests, scores = await asyncio.to_thread(proceed, job, outputs) if is_long else proceed(job, outputs)
        if not requests:
            return scores
        outputs = await frontend.engine.pool(requests)


def _sides(body: ScoreRequest) -> tuple[list[str], list[str]]:
    """The two sides, under whatever names they came."""
    for names in _SIDES:
        first, second = (getattr(body, name) for name in names)
        if first is not None and second is not None:
            return _texts(first, names[0]), _texts(second, names[1])
    raise InvalidRequestError(
        "Give two sides to compare: text_1 and text_2, data_1 and data_2, or queries and documents.", "text_1"
    )


def _texts(given: Any, name: str) -> list[str]:
    return [_text(item, name) for item in (given if isinstance(given, list) else [given])]


def _text(item: str | TextObject, name: str) -> str:
    """A text in any of its shapes."""
    if isinstance(item, str):
        return item
    if item.text is not None:
        return item.text
    if isinstance(item.content, str):
        return item.content
    parts = [part.get("text") for part in item.content or [] if part.get("type", "text") == "text"]
    if not parts or len(parts) < len(item.content or []) or not all(isinstance(part, str) for part in parts):
        raise InvalidRequestError(f"{name} contains something other than text; this model takes text only.", name)
    return "\n".join(str(part) for part in parts)
