"""Request and response bodies of the pooling routes, with OpenAI's, vLLM's, Cohere's and Jina's fields."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from octavo.api.request_body import (
    CacheSalt,
    Int64,
    Objects,
    Priority,
    RequestModel,
    RequestPart,
    Strings,
    TokenIds,
    reject_unsupported,
)
from octavo.api.usage import Usage
from octavo.errors import InvalidRequestError
from octavo.inputs.pooling import NO_PLUGIN
from octavo.records import PoolingTask

MAX_INPUTS = 2048

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
Count = Annotated[int, Field(ge=0, le=1 << 31)]

MAX_PADDED = 64
"""Inputs of a request that may be padded: each is as long as the model takes then."""

_UNSUPPORTED = {
    "chat_template": "a template runs on the server; its operator sets it with --chat-template",
    "instruction": "instructions are not supported; write it into the query as the model wants it",
    "late_chunking_params": "late chunking is not supported",
    "images": "this model takes text only",
}


class PoolingBody(RequestModel):
    """Fields of every pooling request."""

    takes_padding: ClassVar[bool] = False

    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    request_id: str | None = None
    priority: Priority = 0
    cache_salt: CacheSalt | None = None
    use_activation: bool | None = None

    def refuse_unsupported(self) -> None:
        """Reject unsupported fields that would change the result."""
        if self.padding == "max_length" and not self.takes_padding:
            raise InvalidRequestError("padding: pairs of texts are never padded; leave it out.", "padding")
        reject_unsupported(self, _UNSUPPORTED)


class InputBody(PoolingBody):
    """Fields of requests with inputs: texts, token ids or conversations."""

    takes_padding: ClassVar[bool] = True

    input: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)] | Objects | None = None
    messages: Objects | Annotated[list[Objects], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def refuse_unsupported(self) -> None:
        """See :meth:`PoolingBody.refuse_unsupported`."""
        super().refuse_unsupported()
        if self.padding == "max_length" and isinstance(self.input, list) and len(self.input) > MAX_PADDED:
            raise InvalidRequestError(f"padding: one request may pad at most {MAX_PADDED} inputs.", "padding")

    @field_validator("input", mode="wrap")
    @classmethod
    def _in_one_sentence(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(
                "it must be a string, a list of strings, a list of token ids or of such lists, or a list of messages"
            ) from None


class EncodingBody(InputBody):
    """Fields of requests that select the encoding of vectors."""

    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDType = "float32"
    endianness: Endianness = "native"
    dimensions: Int64 | None = None


class EmbeddingRequest(EncodingBody):
    """Body of ``POST /v1/embeddings``."""


class PoolingRouteRequest(EncodingBody):
    """Body of ``POST /pooling``."""

    task: PoolingTask | Literal["plugin"] | None = None

    @property
    def model_task(self) -> PoolingTask | None:
        """The task, if one is named."""
        if self.task == "plugin":
            raise InvalidRequestError(NO_PLUGIN, "task")
        return self.task


class ClassificationRequest(InputBody):
    """Body of ``POST /classify``."""


class TextObject(RequestPart):
    """A text with a name, or as the parts of a message."""

    text: str | None = None
    content: str | Objects | None = None


ScoreText = str | TextObject
ScoreTexts = ScoreText | Annotated[list[ScoreText], Field(fail_fast=True)]


class ScoringBody(PoolingBody):
    """Fields of requests that compare texts."""

    max_tokens_per_query: Count = 0
    max_tokens_per_doc: Count = 0


class ScoreRequest(ScoringBody):
    """Body of ``POST /score``: two sides, under any of their names."""

    data_1: ScoreTexts | None = None
    data_2: ScoreTexts | None = None
    text_1: ScoreTexts | None = None
    text_2: ScoreTexts | None = None
    queries: ScoreTexts | None = None
    documents: ScoreTexts | None = None
    items: ScoreTexts | None = None


class RerankRequest(ScoringBody):
    """Body of ``POST /rerank``."""

    query: ScoreText
    documents: ScoreTexts
    top_n: Count | None = None
    return_documents: bool | None = None

    @field_validator("top_n")
    @classmethod
    def _zero_is_all(cls, value: int | None) -> int | None:
        return value or None


class CohereEmbedRequest(PoolingBody):
    """Body of ``POST /v2/embed``, Cohere's."""

    input_type: Annotated[str, Field(max_length=64)] | None = None
    texts: Strings | None = None
    inputs: Objects | None = None
    output_dimension: Int64 | None = None
    embedding_types: Annotated[list[Literal["float", "base64", "binary", "ubinary"]], Field(fail_fast=True)] | None = (
        None
    )
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None


class EmbeddingData(msgspec.Struct, tag_field="object", tag="embedding"):
    """One input's embedding: numbers, or their bytes in base64."""

    index: int
    embedding: list[float] | msgspec.Raw | str


class PooledAnswerData(msgspec.Struct, tag_field="object", tag="pooling"):
    index: int
    data: list[float] | list[list[float]] | msgspec.Raw | str


class ClassificationData(msgspec.Struct):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ScoreData(msgspec.Struct, tag_field="object", tag="score"):
    index: int
    score: float


class PooledListAnswer(msgspec.Struct, tag_field="object", tag="list"):
    """Answer of ``/v1/embeddings``, ``/pooling``, ``/classify``, ``/score`` and ``/generative_scoring``."""

    id: str
    created: int
    model: str
    data: list[EmbeddingData] | list[PooledAnswerData] | list[ClassificationData] | list[ScoreData]
    usage: Usage


class RerankDocument(msgspec.Struct):
    text: str


class RerankResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class RerankAnswer(msgspec.Struct):
    """Answer of ``/rerank``, best first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]


class ByType(msgspec.Struct, rename={"floats": "float"}, omit_defaults=True):
    floats: list[list[float]] | msgspec.Raw | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereApiVersion(msgspec.Struct):
    version: str = "2"


class CohereUnits(msgspec.Struct):
    """Tokens read; of images never any."""

    input_tokens: int
    image_tokens: int = 0


class CohereMeta(msgspec.Struct):
    billed_units: CohereUnits
    api_version: CohereApiVersion = msgspec.field(default_factory=CohereApiVersion)


class CohereEmbedAnswer(msgspec.Struct):
    """Answer of ``/v2/embed``."""

    id: str
    embeddings: ByType
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"
