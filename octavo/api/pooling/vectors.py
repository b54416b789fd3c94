"""``/v1/embeddings``, ``/pooling`` and ``/classify``."""

import time
from itertools import count

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api import pieces
from octavo.api.frontend import Frontend, answer_id
from octavo.api.pieces import ENCODER, ListWriter
from octavo.api.pooling.encoding import check_binary, send_binary, to_base64
from octavo.api.pooling.inputs import pool_inputs, processor_of, usage_of
from octavo.api.pooling.protocol import (
    ClassificationData,
    ClassificationRequest,
    EmbeddingData,
    EmbeddingRequest,
    EncodingBody,
    PooledAnswerData,
    PooledListAnswer,
    PoolingRouteRequest,
)
from octavo.api.watched import WatchedResponse, send_json
from octavo.errors import InvalidRequestError
from octavo.outputs.pooling import Pooled
from octavo.records import PoolingParams, PoolingTask


def vectors_router(frontend: Frontend) -> APIRouter:
    """Routes that return a vector for each input."""
    router = frontend.json_router("pooling")

    @router.post("/v1/embeddings", summary="Embeddings of texts, token ids or conversations.")
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        if "embed" not in processor_of(frontend).spec.tasks:
            raise InvalidRequestError(_OTHER_ROUTE[processor_of(frontend).spec.tasks[0]])
        answer = answer_id("embd", request, body.request_id)
        return _vectors(frontend, body, answer, model, "embed", is_embedding=True)

    @router.post("/pooling", summary="What the model makes of its inputs: one vector each, or one a token.")
    async def create_pooling(body: PoolingRouteRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        answer = answer_id("pooling", request, body.request_id)
        return _vectors(frontend, body, answer, model, body.model_task, is_embedding=False)

    @router.post("/classify", summary="Probabilities of the model's classes.")
    async def classify(body: ClassificationRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        body.refuse_unsupported()
        spec = processor_of(frontend).spec
        answer = answer_id("classify", request, body.request_id)

        async def work(send: Send) -> None:
            params = PoolingParams(use_activation=body.use_activation)
            outputs = await pool_inputs(frontend, body, answer, params, "classify")
            data = []
            for index, output in enumerate(outputs):
                array = output.outputs.array
                best = int(array.argmax())
                label = spec.labels[best] if best < len(spec.labels) else None
                data.append(ClassificationData(index, label, array.tolist(), len(array)))
            usage = usage_of(frontend, outputs)
            await send_json(send, ENCODER.encode(PooledListAnswer(answer, int(time.time()), model, data, usage)))

        return WatchedResponse(work, frontend.drain)

    return router


_OTHER_ROUTE: dict[PoolingTask, str] = {
    "classify": "This model gives classes, not embeddings; use /classify, /score or /rerank.",
    "token_embed": "This model gives a vector for each token; use /pooling, /score or /rerank.",
    "token_classify": "This model gives classes for each token; use /pooling.",
}


def _vectors(
    frontend: Frontend, body: EncodingBody, answer: str, model: str, task: PoolingTask | None, *, is_embedding: bool
) -> Response:
    body.refuse_unsupported()

    async def work(send: Send) -> None:
        params = PoolingParams(use_activation=body.use_activation, dimensions=body.dimensions)
        if isinstance(body.input, list):
            check_binary(body, len(body.input) if body.input and not isinstance(body.input[0], int) else 1)
        outputs = await pool_inputs(frontend, body, answer, params, task)
        usage = usage_of(frontend, outputs)
        if body.encoding_format in ("bytes", "bytes_only"):
            await send_binary(send, body, answer, model, outputs, usage)
            return

        def build(write: ListWriter) -> PooledListAnswer:
            written = [_written(body, output, write) for output in outputs]
            data: list[EmbeddingData] | list[PooledAnswerData] = list(map(PooledAnswerData, count(), written))
            if is_embedding:
                data = list(map(EmbeddingData, count(), written))
            return PooledListAnswer(answer, int(time.time()), model, data, usage)

        # Writing millions of numbers takes seconds.
        num_numbers = sum(output.outputs.array.size for output in outputs)
        await send_json(send, await pieces.write(num_numbers, build))

    return WatchedResponse(work, frontend.drain)


def _written(body: EncodingBody, output: Pooled, write: ListWriter) -> list[float] | msgspec.Raw | str:
    """A vector as JSON holds it: numbers (a list of lists for one vector per token), or base64."""
    array = output.outputs.array
    if body.encoding_format == "base64":
        return to_base64(array, body.embed_dtype, body.endianness)
    return write(array.tolist() if array.ndim == 1 else (row.tolist() for row in array))
