"""The header by which balancers learn a server's load from its answers (Open Request Cost Aggregation, ORCA)."""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api.middleware import header
from octavo.telemetry.metrics import Metrics

FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = b"endpoint-load-metrics"


class LoadReportMiddleware:
    """Adds the load to answers of requests that ask for it, as ``TEXT`` or ``JSON``; other formats get none.

    Args:
        metrics: where the figures come from.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = (header(scope, FORMAT_HEADER) or "").upper() if scope["type"] == "http" else ""
        if kind not in ("TEXT", "JSON"):
            await self._app(scope, receive, send)
            return

        async def send_with_load(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (REPORT_HEADER, self._report(kind))]
            await send(message)

        await self._app(scope, receive, send_with_load)

    def _report(self, kind: str) -> bytes:
        load = self._metrics.load
        if kind == "JSON":
            return f"JSON {json.dumps({'named_metrics': load})}".encode()
        return f"TEXT {', '.join(f'named_metrics.{name}={value}' for name, value in load.items())}".encode()
