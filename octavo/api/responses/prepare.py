"""Validates a Responses API request and resolves what it refers to."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.api.errors import HttpError
from octavo.api.frontend import Frontend
from octavo.api.middleware import clean_request_id
from octavo.api.request_body import BARE_PROMPT_LIMIT, SAMPLING_FIELDS, parse_structured_outputs
from octavo.api.responses.hooks import Hook
from octavo.api.responses.items import Item, parse_items, short
from octavo.api.responses.mcp import McpServers
from octavo.api.responses.objects import ResponseObject
from octavo.api.responses.protocol import (
    LOGPROBS,
    InputTokensRequest,
    ResponsesRequest,
    ToolChoiceObject,
    refuse_unsupported,
)
from octavo.api.responses.store import MAX_RECALLED_BYTES, ResponseStore, StoredTurn
from octavo.api.responses.tools import Toolset
from octavo.errors import InvalidRequestError
from octavo.records import RequestOutputKind, SamplingParams, StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class Services:
    """What all requests share."""

    frontend: Frontend
    store: ResponseStore
    servers: McpServers
    hooks: Mapping[str, Hook]


@dataclass(slots=True)
class PreparedResponse:
    """A validated request.

    Attributes:
        owner: whose responses these are.
        response: as it is before anything is done.
        parent: the last turn of the conversation that it continues.
        params: ``max_tokens`` is for all rounds together.
        num_logprobs: number of top log-probabilities per token; None disables log-probabilities.
    """

    body: ResponsesRequest
    owner: str
    response: ResponseObject
    parent: StoredTurn | None
    history: list[Item]
    items: list[Item]
    toolset: Toolset
    params: SamplingParams
    response_format: StructuredOutputsParams | None
    template_kwargs: dict[str, Any]
    num_logprobs: int | None

    @property
    def id_tail(self) -> str:
        """Makes ids of the response's items unique."""
        return self.response.id.removeprefix("resp_")[-64:]


def prepare(services: Services, body: ResponsesRequest, owner: str) -> PreparedResponse:
    """Check a request and find what it refers to."""
    frontend, store = services.frontend, services.store
    model = frontend.check_model(body.model)
    refuse_unsupported(body)
    if body.background and not store.max_count:
        raise InvalidRequestError(
            "background: this server stores no responses, so the result could not be retrieved.", "background"
        )
    response_id = _response_id(store, body, owner)
    parent = None
    if body.previous_response_id is not None:
        entry = store.get(owner, body.previous_response_id, "previous_response_id")
        if entry.turn is None:
            raise InvalidRequestError(
                f"previous_response_id: the response {body.previous_response_id!r} is still in progress.",
                "previous_response_id",
            )
        parent = entry.turn
    if parent is not None and parent.num_bytes_of_chain() > MAX_RECALLED_BYTES:
        raise InvalidRequestError(
            f"previous_response_id: the conversation so far takes more than {MAX_RECALLED_BYTES} bytes; send what "
            "matters of it as input.",
            "previous_response_id",
        )
    items = _resolved(store, owner, parse_items(body.input, response_id.removeprefix("resp_")[-64:]))
    if not items and parent is None and not body.previous_input_messages and not isinstance(body, InputTokensRequest):
        raise InvalidRequestError("input has no items.", "input")
    toolset = Toolset.parse(body.tools or (), body.tool_choice, services.servers, services.hooks)
    response_format = answer_format(body)
    is_forced = body.tool_choice == "required" or isinstance(body.tool_choice, ToolChoiceObject)
    if response_format is not None and is_forced:
        raise InvalidRequestError("tool_choice forces a call, so text.format cannot be applied.", "tool_choice")
    params = sampling_params(body, frontend.engine.input_processor.default_sampling_params())
    num_logprobs = body.top_logprobs or 0 if body.includes(LOGPROBS) or body.top_logprobs else None
    return PreparedResponse(
        body=body,
        owner=owner,
        response=_fresh_response(response_id, model, body, params, toolset),
        parent=parent,
        history=parent.items() if parent is not None else [],
        items=items,
        toolset=toolset,
        params=params,
        response_format=response_format,
        template_kwargs=template_kwargs(body),
        num_logprobs=num_logprobs,
    )


def _response_id(store: ResponseStore, body: ResponsesRequest, owner: str) -> str:
    """The id that the client gives, or a new one."""
    given = clean_request_id(body.request_id)
    if given is None:
        return store.new_id()
    response_id = given if given.startswith("resp_") else f"resp_{given}"
    if (owner, response_id) in store:
        raise InvalidRequestError(f"request_id: there is a response {response_id!r} already.", "request_id")
    return response_id


def _resolved(store: ResponseStore, owner: str, items: list[Item]) -> list[Item]:
    """The items, with those in the place of references that they refer to."""
    wanted = [item["id"] for item in items if item["type"] == "item_reference"]
    if len(set(wanted)) < len(wanted):
        raise InvalidRequestError("input refers to the same item twice.", "input")
    kept = store.recall(owner, wanted)
    for item_id in wanted:
        if item_id not in kept:
            raise HttpError(404, f"input: no item {short(item_id)} is stored; send the item itself.", "input")
    return [kept[item["id"]] if item["type"] == "item_reference" else item for item in items]


def answer_format(body: ResponsesRequest) -> StructuredOutputsParams | None:
    """What the answer's text must look like."""
    wanted = body.text.format if body.text else None
    if wanted is not None and wanted.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    if wanted is not None and wanted.type == "json_schema":
        return StructuredOutputsParams(json=wanted.json_schema)
    if not body.structured_outputs:
        return None
    return parse_structured_outputs(body.structured_outputs)


def sampling_params(body: ResponsesRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of an answer."""
    values: dict[str, Any] = {name: getattr(body, name) for name in SAMPLING_FIELDS if getattr(body, name) is not None}
    has_logprobs = body.includes(LOGPROBS) or bool(body.top_logprobs)
    if has_logprobs:
        values["logprobs"] = body.top_logprobs or 0
    if body.max_output_tokens is not None or defaults.max_tokens == BARE_PROMPT_LIMIT:
        values["max_tokens"] = body.max_output_tokens
    # Deltas assign log-probabilities to items; background responses may be cancelled midway.
    in_pieces = body.stream or body.background or has_logprobs
    values["output_kind"] = RequestOutputKind.DELTA if in_pieces else RequestOutputKind.FINAL_ONLY
    return msgspec.structs.replace(defaults, **values)


def template_kwargs(body: ResponsesRequest) -> dict[str, Any]:
    """Values for the chat template: the request's own, and the reasoning effort under several families' names."""
    effort = body.reasoning.effort if body.reasoning else None
    kwargs: dict[str, Any] = {}
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        kwargs["enable_thinking"] = kwargs["thinking"] = effort != "none"
    return {**kwargs, **(body.chat_template_kwargs or {})}


def _fresh_response(
    response_id: str, model: str, body: ResponsesRequest, params: SamplingParams, toolset: Toolset
) -> ResponseObject:
    text_format = body.text.format if body.text and body.text.format else None
    text: dict[str, Any] = {"format": {"type": "text"}}
    if text_format is not None:
        text["format"] = text_format.model_dump(by_alias=True, exclude_none=True)
        if text_format.type == "json_schema":
            text["format"].setdefault("name", "answer")
    if body.text and body.text.verbosity:
        text["verbosity"] = body.text.verbosity
    choice = toolset.choice
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        model=model,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        frequency_penalty=params.frequency_penalty,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=params.presence_penalty,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning={
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": (body.reasoning.summary or body.reasoning.generate_summary) if body.reasoning else None,
        },
        safety_identifier=body.safety_identifier,
        service_tier="default" if body.service_tier in (None, "auto") else body.service_tier,
        store=body.store is not False,
        temperature=params.temperature,
        text=text,
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True),
        tools=toolset.public_tools,
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
