"""Base class, field types and early limits of the request bodies of all protocols.

Validators stop at the first wrong entry, instead of recording an error for each of a million.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from octavo.api.ignored_fields import note_ignored
from octavo.errors import InvalidRequestError
from octavo.records import SamplingParams, StructuredOutputsParams
from octavo.records.sampling_params import MAX_LISTED_TOKENS
from octavo.records.structured import SERVER_FIELDS

MAX_EXTRA_ARGS = 64
MAX_CACHE_SALT = 1024
# What SamplingParams gives a bare prompt. A chat's answer may fill the context, unless the model's own defaults say
# otherwise.
BARE_PROMPT_LIMIT = SamplingParams().max_tokens

Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
# Fail fast: one wrong element must not cost an error record for each of a million.
TokenIds = Annotated[list[Int64], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Priority = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)]


def _check_bias(value: object) -> object:
    if isinstance(value, dict):
        if len(value) > MAX_LISTED_TOKENS:
            raise ValueError(f"it takes at most {MAX_LISTED_TOKENS} entries")
        for key, bias in value.items():
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise ValueError(f"the bias of token {str(key)[:40]!r} must be a number")
            if abs(bias) > 1e9:
                raise ValueError(f"the bias of token {str(key)[:40]!r} is out of range")
    return value


LogitBias = Annotated[dict[str, float] | None, BeforeValidator(_check_bias)]


class RequestModel(BaseModel):
    """Base of all request bodies: no conversion between types, unknown fields kept aside.

    Attributes:
        extras_are_read: unknown fields are used, so they are not reported as ignored.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    extras_are_read: ClassVar[bool] = False

    model: str | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Note unknown fields for the answer's head."""
        if self.model_extra and not self.extras_are_read:
            note_ignored(self.model_extra)


class RequestPart(BaseModel):
    """Base of objects inside a request: no conversion between types, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
    *("stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "logit_bias"),
)
"""Fields of :class:`SamplingRequest` that mean the same in SamplingParams."""


class SamplingRequest(RequestModel):
    """Fields of all requests that generate text in OpenAI's protocols."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | Strings | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: LogitBias = None
    stream: bool | None = False
    user: str | None = None
    request_id: str | None = None
    priority: Priority = 0
    cache_salt: CacheSalt | None = None
    structured_outputs: dict[str, Any] | None = None


def reject_unsupported(body: BaseModel, reasons: Mapping[str, str], **neutral: Collection[object]) -> None:
    """Reject unsupported fields that would change the result; empty values are accepted.

    Args:
        reasons: field → why it is not supported.
        neutral: further values that are accepted, by field.
    """
    # The body may have hundreds of thousands of unknown fields, so it is not iterated.
    given = body.model_extra or {}
    for name in reasons:
        if name in given and given[name] not in (None, False, "", [], {}, *neutral.get(name, ())):
            raise InvalidRequestError(f"{name}: {reasons[name]}.", name)


def parse_structured_outputs(given: dict[str, Any]) -> StructuredOutputsParams:
    """The request field ``structured_outputs``."""
    known = set(StructuredOutputsParams.__struct_fields__) - SERVER_FIELDS
    for name in given:
        if name not in known:
            raise InvalidRequestError(f"structured_outputs has no field {name[:40]!r}.", "structured_outputs")
    try:
        return msgspec.convert(given, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"structured_outputs: {str(error).rstrip('.')}.", "structured_outputs") from None


class StreamOptions(RequestPart):
    """Which usage figures a stream includes."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


def at_most(limit: int) -> BeforeValidator:
    """Refuses larger objects."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            raise PydanticCustomError(
                "too_many", "at most {limit} entries may be given, got {count}", {"limit": limit, "count": len(value)}
            )
        return value

    return BeforeValidator(check)


_Scalar = str | Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)] | float
ExtraArgs = Annotated[
    dict[str, _Scalar | Annotated[list[_Scalar], Field(fail_fast=True)]] | None, at_most(MAX_EXTRA_ARGS)
]
"""vLLM's ``vllm_xargs``: values for the operator's logits processors."""


class AbortRequest(BaseModel):
    """Which answers to end, by the ids that their clients see."""

    request_ids: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=10_000, fail_fast=True)]
