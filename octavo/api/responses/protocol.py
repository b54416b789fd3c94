"""Request bodies of ``/v1/responses``: OpenAI's fields and vLLM's extensions."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from octavo.api.request_body import (
    Int64,
    Objects,
    RequestPart,
    SamplingRequest,
    Strings,
    at_most,
    reject_unsupported,
)
from octavo.errors import InvalidRequestError

MAX_TOOLS = 1024
MAX_HEADERS = 64

ShortText = Annotated[str, StringConstraints(max_length=256)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
# Each tool is looked for in these.
ToolNames = Annotated[Strings, Field(max_length=MAX_TOOLS)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
McpHeaders = Annotated[dict[ShortText, Annotated[str, StringConstraints(max_length=8192)]], at_most(MAX_HEADERS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Reasoning(RequestPart):
    """Reasoning effort and summary."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(RequestPart):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: ShortText | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(RequestPart):
    """Form and length of the answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class FunctionTool(RequestPart):
    """A function that the client calls."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(RequestPart):
    """What a custom tool's input may be."""

    type: ShortText


class CustomTool(RequestPart):
    """A tool of the client that takes text."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceTool(RequestPart):
    """Functions and custom tools of the client under one name."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[Objects, Field(min_length=1, max_length=MAX_TOOLS)]


class ToolFilter(RequestPart):
    """Tools by name, or all that only read."""

    tool_names: ToolNames | None = None
    read_only: bool | None = None


class ApprovalFilter(RequestPart):
    """Which tools are called with and without asking."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(RequestPart):
    """The tools of an MCP server, which this server calls."""

    type: Literal["mcp"]
    server_label: Label
    server_url: Annotated[str, StringConstraints(max_length=2048)] | None = None
    server_description: str | None = None
    allowed_tools: ToolNames | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    headers: McpHeaders | None = None
    authorization: Annotated[str, StringConstraints(max_length=8192)] | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None


class ToolChoiceObject(RequestPart):
    """A choice that names something."""

    type: ShortText
    name: ToolName | None = None
    server_label: ShortText | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[Objects, Field(max_length=MAX_TOOLS)] | None = None


class ResponsesRequest(SamplingRequest):
    """Body of ``POST /v1/responses``."""

    input: str | Objects
    background: bool | None = False
    include: Annotated[list[Include], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    max_output_tokens: Int64 | None = None
    max_tool_calls: Int64 | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue] | None, at_most(16)] = None
    parallel_tool_calls: bool | None = True
    previous_response_id: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning: Reasoning | None = None
    safety_identifier: ShortText | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = "auto"
    store: bool | None = True
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = "auto"
    tools: Objects | None = None
    top_logprobs: Int64 | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"

    include_reasoning: bool = True
    enable_response_messages: bool = False
    previous_input_messages: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def includes(self, what: str) -> bool:
        """Whether ``include`` names it."""
        return what in (self.include or ())


class InputTokensRequest(ResponsesRequest):
    """Body of ``POST /v1/responses/input_tokens``."""

    input: str | Objects = Field(default_factory=list)


UNSUPPORTED: Mapping[str, str] = {
    "conversation": "conversations are not kept; chain answers with previous_response_id",
    "prompt": "there are no stored prompts; send instructions and input",
    "chat_template": "a template runs on the server; its operator sets it with --chat-template",
    "messages": "send the conversation as input",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "n": "there is one answer to a request",
    "context_management": "conversations are not compacted",
    "moderation": "answers are not moderated",
}


def refuse_unsupported(body: ResponsesRequest) -> None:
    """Reject unsupported fields that would change the result, and fields that contradict each other."""
    reject_unsupported(body, UNSUPPORTED, n=(1,))
    if body.background and body.store is False:
        raise InvalidRequestError("background can only be used when `store` is true.", "background")
    text_format = body.text.format if body.text else None
    if text_format is not None and text_format.type == "json_schema" and text_format.json_schema is None:
        raise InvalidRequestError("text.format: the type json_schema needs a schema.", "text")
    if text_format is not None and text_format.type != "text" and body.structured_outputs:
        raise InvalidRequestError("text.format and structured_outputs cannot be combined.", "structured_outputs")
    for name, value in (("max_output_tokens", body.max_output_tokens), ("max_tool_calls", body.max_tool_calls)):
        if value is not None and value < 1:
            raise InvalidRequestError(f"{name} must be at least 1, got {value}.", name)
    if body.top_logprobs is not None and body.top_logprobs < 0:
        raise InvalidRequestError(f"top_logprobs must be at least 0, got {body.top_logprobs}.", "top_logprobs")
    if len(body.tools or ()) > MAX_TOOLS:
        raise InvalidRequestError(f"tools: at most {MAX_TOOLS} may be given, got {len(body.tools or ())}.", "tools")
