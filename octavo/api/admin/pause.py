"""``/pause``, ``/resume`` and ``/abort_requests``."""

from typing import Any, Literal

from fastapi import APIRouter

from octavo.api.frontend import Frontend
from octavo.api.json_body import json_route
from octavo.api.request_body import AbortRequest
from octavo.engine.remote_control import RemoteControl

PauseMode = Literal["abort", "wait", "keep"]


def pause_router(frontend: Frontend, control: RemoteControl) -> APIRouter:
    """Routes that hold the engine up."""
    router = APIRouter(tags=["admin"], route_class=json_route(frontend.settings.max_request_bytes))

    @router.post("/pause", summary="Start no step until /resume; returns once no step is running.")
    async def pause(mode: PauseMode = "abort", clear_cache: bool = True) -> dict[str, str]:
        await control.pause_generation(mode=mode, clear_cache=clear_cache)
        return {"status": "paused"}

    @router.post("/resume", summary="End a pause.")
    async def resume() -> dict[str, str]:
        await control.resume_generation()
        return {"status": "resumed"}

    @router.get("/is_paused", summary="Whether the engine is paused.")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": await control.is_paused()}

    @router.post("/abort_requests", summary="End answers with what there is of them.")
    async def abort_requests(body: AbortRequest) -> dict[str, Any]:
        return {"status": "aborted", "aborted": await control.abort_answers(body.request_ids)}

    return router
