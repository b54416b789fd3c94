"""Sends a batch's requests through the server's own app in this process, so that results equal the server's."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import httpx
from msgspec import UNSET
from starlette.types import ASGIApp

from octavo.api.batch.answers import AnswerFile
from octavo.api.batch.lines import BatchRequest, encode_answer, encode_refusal

# Statuses by which a server asks to come back later.
_BUSY = (429, 503)
_MAX_TRIES = 8
_LONGEST_WAIT = 30.0

Sleep = Callable[[float], Awaitable[None]]


class BatchRunner:
    """Asks requests, a bounded number at the same time, and keeps their answers.

    Args:
        app: answers them.
        answers: where answers go.
        max_inflight: most requests at the same time.
        on_answer: called for each stored answer with whether it succeeded.
        sleep: waits before a request is tried again.
    """

    def __init__(
        self,
        app: ASGIApp,
        answers: AnswerFile,
        max_inflight: int,
        on_answer: Callable[[bool], None] = lambda is_good: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._answers = answers
        self._max_inflight = max_inflight
        self._on_answer = on_answer
        self._sleep = sleep

    async def run(self, requests: Iterator[BatchRequest]) -> None:
        """Ask all requests that have no answer yet.

        Raises:
            RequestFailedError: an answer cannot be kept.
        """
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=self._transport, base_url="http://batch", timeout=None)
            )
            # The workers share the iterator: each takes the next request when it is done with its last.
            todo = (request for request in requests if request.custom_id not in self._answers)
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._max_inflight):
                    workers.create_task(self._work(client, todo))

    async def _work(self, client: httpx.AsyncClient, todo: Iterator[BatchRequest]) -> None:
        for request in todo:
            request_id = uuid.uuid4().hex
            status, line = await self._ask(client, request, request_id)
            await self._answers.add_answer(request.custom_id, line, status == 200)
            self._on_answer(status == 200)

    async def _ask(self, client: httpx.AsyncClient, request: BatchRequest, request_id: str) -> tuple[int, bytes]:
        problem = request.problem()
        if problem is not None:
            return 400, encode_refusal(request.custom_id, request_id, problem)
        assert request.body is not UNSET, "problem() rejects a missing body"
        body = bytes(request.body)
        headers = {"content-type": "application/json", "x-request-id": request_id}
        response = await client.post(str(request.url), content=body, headers=headers)
        for attempt in range(1, _MAX_TRIES):
            if response.status_code not in _BUSY:
                break
            await self._sleep(_wait_before(attempt, response.headers.get("retry-after", "")))
            response = await client.post(str(request.url), content=body, headers=headers)
        if not response.headers.get("content-type", "").startswith("application/json"):
            message = "The answer is not JSON and does not fit into a batch; ask for another format."
            return 400, encode_refusal(request.custom_id, request_id, message)
        return response.status_code, encode_answer(
            request.custom_id, request_id, response.status_code, response.content
        )


def _wait_before(attempt: int, retry_after: str) -> float:
    """Seconds to wait: what the server asks for, and longer from time to time."""
    asked = float(retry_after[:6]) if retry_after.isdecimal() else 0.0
    return min(max(asked, 0.5 * 2.0**attempt), _LONGEST_WAIT)
