"""Request bodies of ``/v1/messages``: Anthropic's fields and vLLM's extensions.

Models check types and hard limits. What a content block may hold depends on where it appears, and is checked where
it is read (:mod:`octavo.api.anthropic.conversation`). Fields that are neither listed here nor in :data:`UNSUPPORTED`
are ignored: most of them are hints for Anthropic's own servers, such as ``cache_control`` or ``service_tier``.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from octavo.api.request_body import CacheSalt, ExtraArgs, Int64, Objects, Priority, RequestModel, RequestPart, Strings

MIN_THINKING_BUDGET = 1024


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class MessageOutputConfig(RequestPart):
    """What a system message asks of the turns that follow it."""

    effort: Effort | None = None


class MessageParam(RequestPart):
    """A turn so far; content is text or a list of blocks.

    Attributes:
        clear_at: "next_user_message" hides a system message's text once the user has written again.
        output_config: of a system message, which may then have no content.
    """

    role: Literal["user", "assistant", "system"]
    content: str | Objects = ""
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: MessageOutputConfig | None = None

    @property
    def lacks_content(self) -> bool:
        """Whether it has none and needs one."""
        return "content" not in self.model_fields_set and (self.role != "system" or self.output_config is None)

    @model_validator(mode="after")
    def _has_its_own_fields(self) -> "MessageParam":
        if self.role != "system" and (self.clear_at or self.output_config):
            raise PydanticCustomError("misplaced", "clear_at and output_config are for messages of the role system")
        return self


class ThinkingConfig(RequestPart):
    """Whether the model is to think first.

    Attributes:
        budget_tokens: how much, as a hint: it chooses the effort for templates that know one.
        display: "omitted" leaves the reasoning text out of the answer.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING_BUDGET, le=1 << 31)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class ToolChoice(RequestPart):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ToolParam(RequestPart):
    """A tool of the client's."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class JsonOutputFormat(RequestPart):
    """The answer is JSON that fits a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestPart):
    """Form of the answer, and how hard the model should try."""

    effort: Effort | None = None
    format: JsonOutputFormat | None = None


class Metadata(RequestPart):
    """The end user of the request."""

    user_id: str | None = None


class CountTokensRequest(RequestModel):
    """Body of ``POST /v1/messages/count_tokens``: what decides the prompt."""

    model: str
    messages: Annotated[list[MessageParam], Field(min_length=1, fail_fast=True)]
    system: str | Objects | None = None
    tools: Annotated[list[ToolParam], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: Int64
    stop_sequences: Strings | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority = 0
    vllm_xargs: ExtraArgs = None


UNSUPPORTED: dict[str, str] = {
    "mcp_servers": "this route does not call MCP servers; use /v1/responses, or offer their tools as tools",
    "container": "there are no containers here; run code on your side, as a tool",
    "kv_transfer_params": "moving caches between servers is not supported",
    "ec_transfer_params": "moving encoders' outputs between servers is not supported",
    "watermarking": "watermarks are not supported",
}
