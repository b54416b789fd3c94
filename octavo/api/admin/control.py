"""Routes that control the engine: empty caches, record profiles, release memory, pause."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from octavo.api.frontend import Frontend
from octavo.api.request_body import AbortRequest
from octavo.engine.remote_control import RemoteControl

PauseMode = Literal["abort", "wait", "keep"]


def control_router(control: RemoteControl) -> APIRouter:
    """Routes that every model has."""
    router = APIRouter(tags=["admin"])

    @router.post("/reset_prefix_cache", summary="Forget cached prefixes; success is false while requests run.")
    async def reset_prefix_cache(reset_running_requests: bool = False, reset_external: bool = False) -> dict[str, bool]:
        # There is no cache outside the engine that reset_external could mean.
        return {"success": await control.reset_prefix_cache(reset_running_requests)}

    @router.post("/reset_mm_cache", summary="No effect: text models have no multimodal cache.")
    @router.post("/reset_encoder_cache", summary="No effect: text models have no encoder cache.")
    async def reset_nothing() -> Response:
        return Response()

    @router.post("/start_profile", summary="Begin to record what host and device do.")
    async def start_profile() -> dict[str, str]:
        await control.start_profile()
        return {"status": "profiling"}

    @router.post("/stop_profile", summary="Write the record, and say where.")
    async def stop_profile() -> dict[str, str]:
        return {"status": "stopped", "file": await control.stop_profile()}

    @router.post("/sleep", summary="Pause, and give back memory: 1 of the cache and the device's weights, 2 of all.")
    async def sleep(level: Annotated[int, Query(ge=0, le=2)] = 1, mode: PauseMode = "abort") -> dict[str, Any]:
        await control.sleep(level, mode)
        return {"status": "sleeping", "level": level}

    @router.post("/release_kv_cache_memory", summary="Pause, and give back the cache's memory alone.")
    async def release_kv_cache_memory() -> dict[str, str]:
        await control.release_kv_cache_memory()
        return {"status": "released"}

    @router.post("/wake_up", summary="Take memory again, all of it or by tags: weights, kv_cache, scheduling.")
    async def wake_up(tags: Annotated[list[str] | None, Query(max_length=8)] = None) -> dict[str, Any]:
        await control.wake_up(tags)
        return {"status": "awake", "tags": tags}

    @router.get("/is_sleeping", summary="Whether memory was given back.")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": await control.is_sleeping()}

    return router


def pause_router(frontend: Frontend, control: RemoteControl) -> APIRouter:
    """Routes that hold the engine up."""
    router = frontend.json_router("admin")

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
