"""Response bodies and stream events of ``/v1/messages``."""

import msgspec
from starlette.types import Scope

from octavo.api.errors import describe_error
from octavo.api.pieces import ENCODER, named_event


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning; clients send it back as it is."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call; ``input`` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The reasoning's signature, after all of its text."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON text cut anywhere."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageTokensDetails(msgspec.Struct):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, omit_defaults=True):
    """Tokens read and written; ``input_tokens`` are those of the prompt that the prefix cache neither gave nor got."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails | None = None


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """Answer of ``/v1/messages``."""

    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    """Answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: Message


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Says that the connection lives."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Delta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct):
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """What could not be known before the end; token counts are those of the whole message."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """Last event."""


BlockEvent = BlockStart | BlockDelta | BlockStop
MessageStreamEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop


def encode_event(event: MessageStreamEvent) -> bytes:
    """A server-sent event with its name."""
    return named_event(str(event.__struct_config__.tag), ENCODER.encode(event))


def error_event(error: Exception, scope: Scope) -> bytes:
    """An error after the stream of that request has begun."""
    return named_event("error", describe_error(error, scope))
