"""Response bodies and stream events. Plain msgspec structs, because some are built once per token."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from octavo.api.logprobs import ChatLogprobs, PromptLogprobs
from octavo.api.pieces import ENCODER
from octavo.api.usage import RequestMetrics, Usage


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token; ``text_offset`` counts characters."""

    text_offset: list[int] | Raw = []
    token_logprobs: list[float | None] | Raw = []
    tokens: list[str] | Raw = []
    top_logprobs: list[dict[str, float] | None] | Raw = []


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    routed_experts: str | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, tag_field="object", tag="text_completion"):
    """Answer, or event of a stream, of ``/v1/completions``."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """A function and its arguments, JSON text; in a stream the new part of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCallInfo(msgspec.Struct):
    id: str
    function: FunctionCall
    type: str = "function"


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """The new part of a call; its first has id, type and name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallInfo] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: str | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, tag_field="object", tag="chat.completion"):
    """Answer of ``/v1/chat/completions``."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: None = None
    prompt_text: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] = []


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    """Event of a streamed ``/v1/chat/completions``."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    id: str
    created: int
    root: str
    max_model_len: int
    owned_by: str = "octavo"
    parent: None = None


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    """Answer of ``/v1/models``."""

    data: list[ModelCard]


class TextEvents:
    """Events of a stream that say nothing but the next piece of one answer's text, as nearly all do.

    Only the text differs from one to the next, so the rest is written once.

    Args:
        sample: such an event, with :attr:`MARK` as its text.
    """

    MARK = "\ue000octavo\ue000"

    def __init__(self, sample: bytes) -> None:
        self._front, self._back = sample.split(ENCODER.encode(self.MARK))

    def event(self, text: str) -> bytes:
        """The event with this text."""
        return self._front + ENCODER.encode(text) + self._back
