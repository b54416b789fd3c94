"""The response object of the Responses API and its parts."""

from typing import Any

import msgspec

from octavo.api.responses.items import OutputItem, PublicItem, public_item


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int = 0


class ResponseError(msgspec.Struct):
    """Why a response failed; ``code`` is one of OpenAI's."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseObject(msgspec.Struct, tag_field="object", tag="response"):
    """What clients get: OpenAI's fields, and vLLM's penalties and messages."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[PublicItem] = []
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    frequency_penalty: float = 0.0
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    presence_penalty: float = 0.0
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    input_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET

    def with_output(self, items: list[OutputItem], **changes: Any) -> "ResponseObject":
        """A copy that shows ``items``."""
        return msgspec.structs.replace(self, output=[public_item(item) for item in items], **changes)
