"""``/metrics``: what Prometheus scrapes."""

from fastapi import APIRouter, Response

from octavo.api.frontend import Frontend
from octavo.telemetry.metrics import CONTENT_TYPE


def metrics_router(frontend: Frontend) -> APIRouter:
    """The route for Prometheus. With several API processes, each reports the requests it served."""
    router = APIRouter(tags=["admin"])

    @router.get("/metrics", summary="Metrics in Prometheus' text format.")
    async def metrics() -> Response:
        return Response(frontend.engine.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router
