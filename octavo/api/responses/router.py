"""``/v1/responses``: create, retrieve, stream, cancel and delete responses."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.types import Send

from octavo.api.chat.conversation import pinned_date
from octavo.api.chat.rendered import rendered_turn
from octavo.api.errors import HttpError
from octavo.api.frontend import Frontend
from octavo.api.json_body import in_thread_if_large
from octavo.api.middleware import owner_of
from octavo.api.pieces import ENCODER, json_answer
from octavo.api.responses.background import MAX_RUNNING, BackgroundResponse, EventLog
from octavo.api.responses.events import ResponseStreamEvent, encode_event
from octavo.api.responses.hooks import load_hooks
from octavo.api.responses.items import Item
from octavo.api.responses.mcp import McpServers
from octavo.api.responses.prepare import PreparedResponse, Services, prepare
from octavo.api.responses.protocol import InputTokensRequest, ResponsesRequest
from octavo.api.responses.run import ResponseRun
from octavo.api.responses.store import ResponseStore, StoredResponse
from octavo.api.watched import EVENT_STREAM_HEADERS, WatchedResponse, error_event, send_json
from octavo.errors import InvalidRequestError, OctavoError, OverloadedError

logger = logging.getLogger(__name__)


def responses_router(frontend: Frontend) -> APIRouter:
    """The routes of the Responses API."""
    settings = frontend.settings
    pinned_date(settings)  # an invalid date is an error at start
    store = ResponseStore(settings.response_store_count, settings.response_store_bytes, settings.api_server_count)
    services = Services(frontend, store, McpServers.from_settings(settings), load_hooks(settings.builtin_tool or ()))
    router = frontend.json_router("responses", "/v1/responses")

    @router.post("", summary="Answer, with the tools of the client and of the server.")
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        prepared = await prepare_in_thread(services, body, request)
        if body.background:
            entry = await _start_in_background(services, prepared)
            assert entry.background is not None
            if body.stream:
                return _watch(frontend, entry.background.log, -1)
            return json_answer(entry.as_json())

        async def work(send: Send) -> None:
            if body.stream:
                stream = EventSender(send)
                await ResponseRun(services, prepared, stream.send_events).execute()
                await stream.close()
            else:
                await send_json(send, ENCODER.encode(await ResponseRun(services, prepared, _drop).execute()))

        return WatchedResponse(work, frontend.drain)

    @router.post("/render", summary="The tokens that a request would have the model read first.")
    async def render_response(body: ResponsesRequest, request: Request) -> Response:
        prepared = await prepare_in_thread(services, body, request)
        turn = await ResponseRun(services, prepared, _drop).first_turn()
        rendered = rendered_turn(turn, prepared.response.id, prepared.response.model, body)
        return json_answer(rendered)

    @router.post("/input_tokens", summary="Count the tokens that a request would have the model read.")
    async def count_input_tokens(body: InputTokensRequest, request: Request) -> Response:
        prepared = await prepare_in_thread(services, body, request)
        num_tokens = await ResponseRun(services, prepared, _drop).count_input()
        return json_answer({"object": "response.input_tokens", "input_tokens": num_tokens})

    @router.get("/{response_id}", summary="A response as far as it is, or its events.")
    async def retrieve_response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=-1, le=1 << 53)] = None,
    ) -> Response:
        entry = store.get(owner_of(request.scope), response_id)
        if not stream:
            if starting_after is not None:
                raise InvalidRequestError("starting_after is for streams; set stream to true.", "starting_after")
            return json_answer(entry.as_json())
        if entry.background is None:
            raise InvalidRequestError(
                "stream: the events of this response were not stored; create it with background set to true.", "stream"
            )
        after = -1 if starting_after is None else starting_after
        entry.background.log.check(after)
        return _watch(frontend, entry.background.log, after)

    @router.post("/{response_id}/cancel", summary="Cancel a response that is made in the background.")
    async def cancel_response(response_id: str, request: Request) -> Response:
        entry = store.get(owner_of(request.scope), response_id)
        if entry.background is None:
            raise InvalidRequestError(
                "Cannot cancel a synchronous response; only background responses can be cancelled."
            )
        await entry.background.cancel()
        return json_answer(entry.as_json())

    @router.delete("/{response_id}", summary="Forget a response.")
    async def delete_response(response_id: str, request: Request) -> Response:
        entry = store.delete(owner_of(request.scope), response_id)
        if entry.background is not None:
            await entry.background.cancel()
        return json_answer({"id": response_id, "object": "response", "deleted": True})

    @router.get("/{response_id}/input_items", summary="What the model read for a response.")
    async def list_input_items(
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        entry = store.get(owner_of(request.scope), response_id)
        items = entry.turn.all_inputs() if entry.turn is not None else entry.inputs
        return json_answer(_page(items, after, limit, order))

    return router


async def prepare_in_thread(services: Services, body: ResponsesRequest, request: Request) -> PreparedResponse:
    """:func:`prepare`, in a thread if it may take long."""
    work = partial(prepare, services, body, owner_of(request.scope))
    # What is kept of a conversation may be much more than comes with the request. It is only read there.
    if body.previous_response_id is not None:
        return await asyncio.to_thread(work)
    return await in_thread_if_large(request, work)


async def _start_in_background(services: Services, prepared: PreparedResponse) -> StoredResponse:
    if len(services.store.running()) >= MAX_RUNNING:
        raise OverloadedError(f"{MAX_RUNNING} background responses are in progress; try again later.")
    background = BackgroundResponse()
    run = ResponseRun(services, prepared, background.log.append_events)
    await run.check()
    background.snapshot = run.snapshot
    everything = [*prepared.history, *prepared.items]
    entry = services.store.begin_response(prepared.owner, prepared.response, background, everything)

    async def work() -> None:
        try:
            await run.execute()
        finally:
            if entry.is_running:  # it was cancelled twice
                ended = msgspec.structs.replace(run.snapshot(), status="cancelled")
                services.store.finish_response(prepared.owner, ended, prepared.items, [], prepared.parent)
            background.log.close()

    background.task = asyncio.create_task(work())
    services.frontend.drain.track(background.task)
    await asyncio.sleep(0)  # let the task start: one cancelled before that would not emit its final event
    return entry


def _watch(frontend: Frontend, log: EventLog, after: int) -> WatchedResponse:
    """Send the events of a log as they come."""

    async def relay(stream: EventSender, last: int) -> None:
        async with aclosing(log.read(last)) as source:
            async for data in source:
                await stream.send(data)
                stream.num_sent += 1

    async def work(send: Send) -> None:
        stream = EventSender(send)
        try:
            await relay(stream, after)
        except OctavoError as error:
            await stream.send(error_event(error))
        except asyncio.CancelledError:
            if not frontend.drain.is_aborting:
                raise
            # The response is being aborted as well; its final event says so.
            await relay(stream, after + stream.num_sent)
        await stream.close()

    return WatchedResponse(work, frontend.drain)


class EventSender:
    """Sends server-sent events; the answer starts with the first.

    Attributes:
        num_sent: number of relayed events; set by the caller.
    """

    def __init__(self, send: Send) -> None:
        self.num_sent = 0
        self._send = send
        self._is_started = False

    async def send_events(self, new: Sequence[ResponseStreamEvent]) -> None:
        """Send events."""
        await self.send(b"".join([encode_event(event) for event in new]))

    async def send(self, data: bytes) -> None:
        """Send what is encoded."""
        if not self._is_started:
            self._is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """End the answer."""
        if not self._is_started:
            await self.send(b"")
        await self._send({"type": "http.response.body", "body": b""})


async def _drop(new: Sequence[ResponseStreamEvent]) -> None:
    """Discard events."""


def _page(items: list[Item], after: str | None, limit: int, order: str) -> dict[str, Any]:
    items = items[::-1] if order == "desc" else items
    if after is not None:
        place = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise HttpError(404, f"after: there is no item {after[:80]!r} here.", "after")
        items = items[place + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(items) > limit,
    }
