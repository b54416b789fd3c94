"""``/v2/embed``: embeddings as Cohere's clients ask for them."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api import pieces
from octavo.api.frontend import Frontend, answer_id
from octavo.api.pieces import ListWriter
from octavo.api.pooling.encoding import pack_bits, to_base64
from octavo.api.pooling.inputs import pool_prompts, processor_of
from octavo.api.pooling.protocol import ByType, CohereEmbedAnswer, CohereEmbedRequest, CohereMeta, CohereUnits
from octavo.api.watched import WatchedResponse, send_json
from octavo.errors import InvalidRequestError
from octavo.inputs.pooling import PoolingOptions
from octavo.outputs.pooling import Pooled
from octavo.records import PoolingParams, PoolingSpec

# Cohere's kinds of input → names under which models keep a text to put before such inputs.
_PROMPT_NAMES = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
}
_KINDS = frozenset({*_PROMPT_NAMES, "classification", "clustering"})


def cohere_router(frontend: Frontend) -> APIRouter:
    """Cohere's route for embeddings; ``/v2/rerank`` is with the others."""
    router = frontend.json_router("pooling")

    @router.post("/v2/embed", summary="Embeddings of texts, in Cohere's shape.")
    async def embed(body: CohereEmbedRequest, request: Request) -> Response:
        frontend.check_model(body.model)
        body.refuse_unsupported()
        processor = processor_of(frontend)
        texts = _texts(body)
        prefix = _prefix(processor.spec, body.input_type)
        answer = answer_id("embd", request, body.request_id)
        limit = min(body.max_tokens or processor.max_model_len, processor.max_model_len)
        options = PoolingOptions(
            priority=body.priority,
            truncate_prompt_tokens=None if body.truncate == "NONE" else limit,
            truncation_side="left" if body.truncate == "START" else "right",
        )

        async def work(send: Send) -> None:
            params = PoolingParams(dimensions=body.output_dimension)
            prompts = [prefix + text for text in texts]
            outputs = await pool_prompts(frontend, prompts, answer, params, "embed", options)
            num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
            meta = CohereMeta(CohereUnits(num_tokens))

            def build(write: ListWriter) -> CohereEmbedAnswer:
                embeddings = _by_type(outputs, body.embedding_types or ["float"], write)
                return CohereEmbedAnswer(answer, embeddings, texts, meta)

            num_numbers = sum(output.outputs.array.size for output in outputs)
            await send_json(send, await pieces.write(num_numbers, build))

        return WatchedResponse(work, frontend.drain)

    return router


def _by_type(outputs: Sequence[Pooled], kinds: Sequence[str], write: ListWriter) -> ByType:
    arrays = [output.outputs.array for output in outputs]
    answer = ByType()
    if "float" in kinds:
        answer.floats = write(array.tolist() for array in arrays)
    if "base64" in kinds:
        answer.base64 = [to_base64(array, "float32", "little") for array in arrays]
    if "binary" in kinds:
        answer.binary = [pack_bits(array, is_signed=True) for array in arrays]
    if "ubinary" in kinds:
        answer.ubinary = [pack_bits(array, is_signed=False) for array in arrays]
    return answer


def _texts(body: CohereEmbedRequest) -> list[str]:
    if (body.texts is None) == (body.inputs is None):
        raise InvalidRequestError("Give either texts or inputs.", "texts")
    if body.texts is not None:
        return body.texts
    texts = []
    for index, item in enumerate(body.inputs or []):
        parts = item.get("content")
        where = f"inputs[{index}]"
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise InvalidRequestError(f"{where} must have content, a list of parts.", where)
        found = [part.get("text") if part.get("type") == "text" else None for part in parts]
        if not found or not all(isinstance(text, str) for text in found):
            raise InvalidRequestError(f"{where} contains something other than text; this model takes text only.", where)
        texts.append("\n".join(str(text) for text in found))
    return texts


def _prefix(spec: PoolingSpec, input_type: str | None) -> str:
    """What the model wants before inputs of a kind; nothing if its files do not say."""
    if input_type is None:
        return ""
    for name in _PROMPT_NAMES.get(input_type, (input_type,)):
        if name in spec.prompts:
            return spec.prompts[name]
    if input_type not in _KINDS:
        known = ", ".join(sorted({*_KINDS, *spec.prompts}))
        raise InvalidRequestError(f"Unsupported input_type {input_type!r}; this model takes: {known}.", "input_type")
    return ""
