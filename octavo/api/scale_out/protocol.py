"""Bodies and answers of the routes that split serving: render → generate → derender.

One server may turn requests into tokens, another generate from them, a third turn tokens back into answers. Names are
vLLM's; fields for images or for KV transfer between servers are rejected unless empty.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from octavo.api.logprobs import ChatLogprobs, PromptLogprobs
from octavo.api.openai.answers import ChatMessage
from octavo.api.request_body import CacheSalt, Priority, RequestModel, StreamOptions, TokenIds
from octavo.api.usage import Usage

_NO_MEDIA = "images, audio and video are not supported"
_NO_TRANSFER = "moving caches between servers is not supported"
UNSUPPORTED: dict[str, str] = {
    "features": _NO_MEDIA,
    "content_parts": _NO_MEDIA,
    "kv_transfer_params": _NO_TRANSFER,
    "ec_transfer_params": _NO_TRANSFER,
}


class ParseContext(RequestModel):
    """What a render route says of the conversation, for those who read the answer."""

    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    history_tool_call_cnt: Annotated[int, Field(ge=0)] = 0


class GenerateRequest(RequestModel):
    """Body of ``POST /inference/v1/generate``: tokens in; tokens, text or a message out.

    ``reasoning_ended`` says whether the answer begins after the model's reasoning, as reported by a render route; None
    leaves it to the sampling parameters. ``parse_context`` is read for messages alone.
    """

    token_ids: Annotated[TokenIds, Field(min_length=1)]
    sampling_params: dict[str, Any]
    request_id: str | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: ParseContext | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority = 0


class TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float
    rank: int | None = None


class PositionLogprobs(msgspec.Struct):
    """The chosen token at one position and the candidates, the chosen one first."""

    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[TokenLogprob]


class TokensLogprobs(msgspec.Struct):
    content: list[PositionLogprobs] | msgspec.Raw


class GenerateChoice(msgspec.Struct):
    """One completion, or the new part of it in a stream; ``text`` and ``message`` only in their modes.

    ``token_ids`` is null if they would reveal reasoning that the request hides.
    """

    index: int
    token_ids: list[int] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: TokensLogprobs | ChatLogprobs | None = None
    text: str | UnsetType = UNSET
    message: ChatMessage | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """Answer of ``/inference/v1/generate``."""

    request_id: str
    output_mode: str
    model: str
    created: int
    choices: list[GenerateChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class GenerateChunk(msgspec.Struct, kw_only=True):
    request_id: str
    output_mode: str
    choices: list[GenerateChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
