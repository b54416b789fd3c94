"""Rendered requests: bodies for ``/inference/v1/generate``."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from octavo.api.chat.conversation import Conversation, tool_description
from octavo.api.chat.turn import ChatTurn
from octavo.api.request_body import StreamOptions
from octavo.records import RequestOutputKind, SamplingParams


class Renderable(Protocol):
    """What all protocols' bodies say besides the prompt."""

    stream: bool | None
    cache_salt: str | None
    priority: int


class RenderedRequest(msgspec.Struct, kw_only=True):
    """What a render route makes of a request: a body for ``/inference/v1/generate``."""

    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    model: str
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int
    reasoning_ended: bool | None = None
    parse_context: dict[str, Any] | None = None


def rendered_turn(
    turn: ChatTurn,
    name: str,
    model: str,
    body: Renderable,
    stream_options: StreamOptions | None = None,
    *,
    include_reasoning: bool = True,
) -> RenderedRequest:
    """A turn that is not taken here.

    Args:
        include_reasoning: whether the reader of the answer wants the model's reasoning; a format binds the answer from
            its first token if not.
    """
    rendered = rendered_request(turn.prompt["prompt_token_ids"], turn.params, name, model, body, stream_options)
    rendered.reasoning_ended = turn.reasoning_ended
    if turn.reasoning_ended is False and not include_reasoning:
        rendered.reasoning_ended = True
    rendered.parse_context = _parse_context(turn.conversation, include_reasoning)
    return rendered


def _parse_context(conversation: Conversation, include_reasoning: bool) -> dict[str, Any]:
    """What the parsers must know of the conversation."""
    tools = [tool_description(tool) for tool in conversation.tools]
    for description, tool in zip(tools, conversation.tools, strict=True):
        if tool.is_strict:
            description["function"]["strict"] = True
    choice: Any = conversation.tool_choice
    if conversation.named_tool is not None:
        choice = {"type": "function", "function": {"name": conversation.named_tool}}
    return {
        "tools": tools or None,
        "tool_choice": choice if tools else "none",
        "parallel_tool_calls": conversation.is_parallel,
        "include_reasoning": include_reasoning,
        "chat_template_kwargs": dict(conversation.template_kwargs),
    }


def rendered_request(
    token_ids: Sequence[int],
    params: SamplingParams,
    name: str,
    model: str,
    body: Renderable,
    stream_options: StreamOptions | None = None,
) -> RenderedRequest:
    """A body for ``/inference/v1/generate``."""
    return RenderedRequest(
        request_id=name,
        token_ids=list(token_ids),
        # How it is sent is left to the request.
        sampling_params=msgspec.structs.replace(params, output_kind=RequestOutputKind.CUMULATIVE),
        model=model,
        stream=bool(body.stream),
        stream_options=None if stream_options is None else stream_options.model_dump(),
        cache_salt=body.cache_salt,
        priority=body.priority,
    )
