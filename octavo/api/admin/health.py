"""``/health``, ``/ping`` and ``/version``."""

from fastapi import APIRouter, Response

from octavo import __version__
from octavo.api.drain import SHUTTING_DOWN
from octavo.api.errors import RETRY_AFTER, error_response
from octavo.api.frontend import Frontend

ENGINE_DOWN = "The engine is down, or no step of it has ended for too long."


def health_router(frontend: Frontend) -> APIRouter:
    """Routes that report whether the server can answer."""
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

    return router
