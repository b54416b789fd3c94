"""Request bodies of the OpenAI routes: OpenAI's fields and vLLM's extensions.

Models check types and hard limits; ranges of sampling parameters are :class:`SamplingParams`' business.
Fields that are neither listed here nor in :data:`UNSUPPORTED` are ignored, as OpenAI's server does.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from octavo.api.request_body import (
    ExtraArgs,
    Int64,
    Objects,
    RequestModel,
    SamplingRequest,
    StreamOptions,
    Strings,
    TokenIds,
    at_most,
)


class ResponseFormat(BaseModel):
    """The form of the answer: text, JSON, or JSON of a schema."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str


class RepetitionDetection(BaseModel):
    """When a text that repeats itself is ended; ranges are checked with the sampling parameters."""

    model_config = ConfigDict(strict=True, extra="forbid")

    max_pattern_size: Int64 = 0
    min_pattern_size: Int64 = 0
    min_count: Int64 = 0


class GenerationRequest(SamplingRequest):
    """Fields of every request that generates text."""

    n: Int64 | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None

    min_tokens: Int64 | None = None
    truncate_prompt_tokens: Int64 | None = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Strings | None = None
    prompt_logprobs: Int64 | None = None
    logprob_token_ids: TokenIds | None = None
    use_beam_search: bool | None = False
    length_penalty: float | None = None
    thinking_token_budget: Int64 | None = None
    repetition_detection: Annotated[RepetitionDetection | None, at_most(8)] = None
    vllm_xargs: ExtraArgs = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    routed_experts_prompt_start: Int64 | None = None


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: str | TokenIds | Strings | Annotated[list[TokenIds], Field(fail_fast=True)] | None = None
    prompt_embeds: str | Strings | None = None
    echo: bool | None = False
    logprobs: Int64 | None = None
    max_tokens: Int64 | None = 16
    add_special_tokens: bool = True


class ChatCompletionRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[Objects, Field(min_length=1)]
    logprobs: bool | None = False
    top_logprobs: Int64 | None = None
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    tools: Objects | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    echo: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    modalities: Strings | None = None
    return_prompt_text: bool | None = False


class TokenizeRequest(RequestModel):
    """Body of ``POST /tokenize``: a prompt or a conversation."""

    prompt: str | None = None
    messages: Annotated[Objects, Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Objects | None = None
    documents: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(RequestModel):
    """Body of ``POST /detokenize``."""

    tokens: TokenIds


_NEW_NAME = "it has become structured_outputs"
UNSUPPORTED: dict[str, str] = {
    "suffix": "filling in the middle is not supported",
    "best_of": "use n, which returns every completion",
    "chat_template": "a template runs on the server; its operator sets it with --chat-template",
    "guided_json": _NEW_NAME,
    "guided_regex": _NEW_NAME,
    "guided_choice": _NEW_NAME,
    "guided_grammar": _NEW_NAME,
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "audio is not supported",
    "web_search_options": "this route searches nothing; use /v1/responses with a tool for it",
    "watermarking": "texts are not watermarked",
    "kv_transfer_params": "the cache is not moved between servers",
    "ec_transfer_params": "the cache is not moved between servers",
    "return_weight_versions": "weights have no versions here",
    "return_token_offsets": "token offsets are not returned",
}
