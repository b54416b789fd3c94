"""Events of a streamed response, in the shapes of OpenAI's clients.

Every event has a ``sequence_number``, which the sender sets: numbers go up by one from 0.
"""

import msgspec

from octavo.api.logprobs import ChatTokenLogprob
from octavo.api.pieces import ENCODER, named_event
from octavo.api.responses.items import OutputText, PublicItem, ReasoningPart
from octavo.api.responses.objects import ResponseObject


class ResponseStreamEvent(msgspec.Struct, tag_field="type", kw_only=True):
    """Base of all events."""

    sequence_number: int = -1


class ResponseEvent(ResponseStreamEvent, kw_only=False, tag="response"):
    """Base of the events that show the whole response."""

    response: ResponseObject


class ResponseCreated(ResponseEvent, tag="response.created"):
    """The first event."""


class ResponseQueued(ResponseEvent, tag="response.queued"):
    """A response in the background waits."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    """Work has begun."""


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    """The last event of a whole answer."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    """The last event of an answer that was cut or cancelled."""


class ResponseFailed(ResponseEvent, tag="response.failed"):
    """The last event of a response that failed."""


class OutputItemAdded(ResponseStreamEvent, kw_only=False, tag="response.output_item.added"):
    output_index: int
    item: PublicItem


class OutputItemDone(ResponseStreamEvent, kw_only=False, tag="response.output_item.done"):
    """An item is whole, or as whole as it will be."""

    output_index: int
    item: PublicItem


class ItemEvent(ResponseStreamEvent, kw_only=False, tag="item"):
    """Base of the events inside an item."""

    item_id: str
    output_index: int


class ContentPartAdded(ItemEvent, tag="response.content_part.added"):
    content_index: int
    part: OutputText | ReasoningPart


class ContentPartDone(ItemEvent, tag="response.content_part.done"):
    content_index: int
    part: OutputText | ReasoningPart


class ReasoningPartAdded(ItemEvent, tag="response.reasoning_part.added"):
    """A part of reasoning begins, under vLLM's name; sent besides OpenAI's event."""

    content_index: int
    part: ReasoningPart


class ReasoningPartDone(ItemEvent, tag="response.reasoning_part.done"):
    content_index: int
    part: ReasoningPart


class OutputTextDelta(ItemEvent, tag="response.output_text.delta"):
    content_index: int
    delta: str
    logprobs: list[ChatTokenLogprob]


class OutputTextDone(ItemEvent, tag="response.output_text.done"):
    content_index: int
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningTextDelta(ItemEvent, tag="response.reasoning_text.delta"):
    content_index: int
    delta: str


class ReasoningTextDone(ItemEvent, tag="response.reasoning_text.done"):
    content_index: int
    text: str


class FunctionCallArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta"):
    delta: str


class FunctionCallArgumentsDone(ItemEvent, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomToolCallInputDelta(ItemEvent, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomToolCallInputDone(ItemEvent, tag="response.custom_tool_call_input.done"):
    input: str


class McpCallArgumentsDelta(ItemEvent, tag="response.mcp_call_arguments.delta"):
    delta: str


class McpCallArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done"):
    arguments: str


class ToolProgress(ResponseStreamEvent, kw_only=False, tag=False):
    """How far a tool of the server is: the type is such as ``response.mcp_call.completed``."""

    type: str
    item_id: str
    output_index: int


def encode_event(event: ResponseStreamEvent) -> bytes:
    """A server-sent event."""
    kind = event.type if isinstance(event, ToolProgress) else event.__struct_config__.tag
    return named_event(str(kind), ENCODER.encode(event))
