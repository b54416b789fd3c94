"""Graceful shutdown: reject new requests, let running ones finish, then abort the rest."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.api.errors import send_error
from octavo.api.middleware import route_path

SHUTTING_DOWN = "The server is shutting down."
# Clients should retry once a restart may have happened.
RETRY_AFTER_SHUTDOWN = {"retry-after": "5", "connection": "close"}
OPEN_WHILE_DRAINING = frozenset({"/health", "/ping", "/version", "/metrics"})


class Drain:
    """Whether the server still takes requests, and the tasks of those it works on.

    Attributes:
        is_draining: new requests are refused.
        is_aborting: running ones are being cancelled, too.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_aborting = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """Requests that are being worked on."""
        return len(self._tasks)

    def start_draining(self) -> None:
        """Refuse new requests from now on."""
        self.is_draining = True

    def abort_all(self) -> None:
        """Cancel the work of every request still running."""
        self.is_draining = self.is_aborting = True
        for task in self._tasks:
            task.cancel()

    def track(self, task: asyncio.Task[None]) -> None:
        """Count ``task`` among those that :meth:`abort_all` cancels, until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class DrainMiddleware:
    """Answers new requests with status 503 while the server drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._drain.is_draining and route_path(scope) not in OPEN_WHILE_DRAINING:
            await send_error(send, 503, SHUTTING_DOWN, RETRY_AFTER_SHUTDOWN, scope)
        else:
            await self._app(scope, receive, send)
