"""``/generative_scoring``: probabilities of label tokens as the next token."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.types import Send

from octavo.api.frontend import SHORT_TEXT, Frontend, answer_id, engine_id
from octavo.api.pieces import ENCODER
from octavo.api.pooling.protocol import PooledListAnswer, ScoreData
from octavo.api.request_body import CacheSalt, Priority, RequestModel, Strings, TokenIds
from octavo.api.usage import Usage
from octavo.api.watched import WatchedResponse, last_items, send_json
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.records import RequestOutput, RequestOutputKind, SamplingParams

MAX_LABELS = 256
MAX_SEQUENCES = 4096


class GenerativeScoringRequest(RequestModel):
    """Body of ``POST /generative_scoring``: a query, and items to judge with it."""

    query: str | TokenIds
    items: Strings | Annotated[list[TokenIds], Field(fail_fast=True)]
    label_token_ids: Annotated[TokenIds, Field(min_length=1, max_length=MAX_LABELS)]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    cache_salt: CacheSalt | None = None
    priority: Priority = 0
    request_id: str | None = None


def generative_scoring_router(frontend: Frontend) -> APIRouter:
    """The route that scores items."""
    router = frontend.json_router("scoring", "/generative_scoring")

    @router.post("", summary="How likely labels are to follow each item.")
    async def score(body: GenerativeScoringRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        scoring = Scoring(frontend, body, answer_id("generative-scoring", request, body.request_id))
        prompts = await scoring.prompts()

        async def work(send: Send) -> None:
            await send_json(send, ENCODER.encode(await scoring.answer(prompts, model)))

        return WatchedResponse(work, frontend.drain)

    return router


class Scoring:
    """Works on one request.

    A token's log-probability comes with it when it is generated, as the model gave it, whatever was allowed. So each
    label is the only token that one request of one step may generate. The first labels of all items go first: the
    others find the prompts in the cache.
    """

    def __init__(self, frontend: Frontend, body: GenerativeScoringRequest, name: str) -> None:
        self._frontend = frontend
        self._body = body
        self._name = name
        # Probabilities over the whole vocabulary need no other label's.
        self._labels = body.label_token_ids if body.apply_softmax else body.label_token_ids[:1]
        self._num_requests = 0
        vocab_size = frontend.engine.info.vocab_size
        for label in body.label_token_ids:
            if not 0 <= label < vocab_size:
                raise InvalidRequestError(
                    f"label_token_ids must be between 0 and {vocab_size - 1}, got {label}.", "label_token_ids"
                )
        if not body.items:
            raise InvalidRequestError("items must not be empty.", "items")
        num_sequences = len(body.items) * len(self._labels)
        if num_sequences > MAX_SEQUENCES:
            raise InvalidRequestError(
                f"One request may score at most {MAX_SEQUENCES} pairs of item and label, got {num_sequences}.", "items"
            )

    async def prompts(self) -> list[list[int]]:
        """The query with each item."""
        texts = [text for text in (self._body.query, *self._body.items) if isinstance(text, str)]
        if sum(map(len, texts)) < SHORT_TEXT:
            return self._prompts()
        return await asyncio.to_thread(self._prompts)

    def _prompts(self) -> list[list[int]]:
        query = self._ids(self._body.query, self._body.add_special_tokens)
        items = [self._ids(item, False) for item in self._body.items]
        return [item + query if self._body.item_first else query + item for item in items]

    def _ids(self, text: str | list[int], add_special_tokens: bool) -> list[int]:
        return text if isinstance(text, list) else self._frontend.need_tokenizer().encode(text, add_special_tokens)

    async def answer(self, prompts: Sequence[list[int]], model: str) -> PooledListAnswer:
        """Score all items."""
        firsts = await self._logprobs(prompts, self._labels[:1])
        others = await self._logprobs(prompts, self._labels[1:])
        num_others = len(self._labels) - 1
        scores = []
        for index, first in enumerate(firsts):
            rivals = others[index * num_others : (index + 1) * num_others]
            scores.append(ScoreData(index, share(first, rivals) if self._body.apply_softmax else math.exp(first)))
        num_prompt, num_generated = sum(map(len, prompts)), len(prompts)
        usage = Usage(num_prompt, num_prompt + num_generated, num_generated)
        return PooledListAnswer(self._name, int(time.time()), model, scores, usage)

    async def _logprobs(self, prompts: Sequence[list[int]], labels: Sequence[int]) -> list[float]:
        """Log-probability of each label after each prompt, prompt by prompt."""
        pairs = [(prompt, label) for prompt in prompts for label in labels]
        if not pairs:
            return []
        sources = []
        for prompt, label in pairs:
            params = SamplingParams(
                max_tokens=1,
                temperature=0.0,
                logprobs=0,
                allowed_token_ids=[label],
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            name = engine_id(self._name, self._num_requests)
            self._num_requests += 1
            sources.append(
                self._frontend.engine.generate(
                    prompt, params, name, priority=self._body.priority, cache_salt=self._body.cache_salt
                )
            )
        outputs = await last_items(sources)
        return [_logprob(output, label) for output, (_, label) in zip(outputs, pairs, strict=True)]


def share(first: float, rivals: Sequence[float]) -> float:
    """The first label's part of the probability of all labels, from log-probabilities; 0 if none has any."""
    largest = max(first, *rivals) if rivals else first
    if largest == -math.inf:
        return 0.0
    weights = [math.exp(logprob - largest) for logprob in (first, *rivals)]
    return weights[0] / sum(weights)


def _logprob(output: RequestOutput, label: int) -> float:
    positions = output.outputs[0].logprobs if output.outputs else None
    if not positions or label not in positions[0]:
        raise RequestFailedError("The model gave no probability for a label.")
    return positions[0][label].logprob
