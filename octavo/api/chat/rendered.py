"""A request as tokens: what ``/inference/v1/generate`` takes, made without generating anything."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from octavo.api.chat.turn import Turn
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


def rendered_turn(
    turn: Turn, name: str, model: str, body: Renderable, stream_options: StreamOptions | None = None
) -> RenderedRequest:
    """A turn that is not taken here."""
    return rendered_request(turn.prompt["prompt_token_ids"], turn.params, name, model, body, stream_options)


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
