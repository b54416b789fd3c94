"""What balancers and monitors ask: ``/health``, ``/ping``, ``/version``, ``/load``, ``/metrics``."""

from typing import Any

from fastapi import APIRouter, Response

from octavo import __version__
from octavo.api.drain import SHUTTING_DOWN
from octavo.api.errors import RETRY_AFTER, error_response
from octavo.api.frontend import Frontend
from octavo.telemetry.metrics import CONTENT_TYPE

ENGINE_DOWN = "The engine is down, or no step of it has ended for too long."


def health_router(frontend: Frontend) -> APIRouter:
    """Routes that report the server's state. With several API processes, each reports the requests it serves."""
    router = APIRouter(tags=["admin"])

    @router.get("/health", summary="Status 200 if requests are served, else 503.")
    @router.get("/ping", summary="The same, under SageMaker's name.")
    @router.post("/ping", include_in_schema=False)
    @router.head("/health", include_in_schema=False)
    @router.head("/ping", include_in_schema=False)
    async def health() -> Response:
        if frontend.drain.is_draining:
            return error_response(503, SHUTTING_DOWN, headers=RETRY_AFTER)
        if not frontend.engine.is_healthy:
            return error_response(503, frontend.engine.fault or ENGINE_DOWN, headers=RETRY_AFTER)
        return Response()

    @router.get("/version", summary="Octavo's version.")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/load", summary="Requests that this API process works on.")
    async def load() -> dict[str, int]:
        return {"server_load": frontend.drain.num_running}

    @router.get("/kv_event_sources", summary="Where events of cached blocks are published, by data-parallel rank.")
    async def kv_event_sources() -> dict[str, dict[str, Any]]:
        source = frontend.engine.info.kv_event_source
        return {"0": source} if source else {}

    @router.get("/metrics", summary="Metrics in Prometheus' text format.")
    async def metrics() -> Response:
        return Response(frontend.engine.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router
