"""``/sleep`` and ``/wake_up``: release and reclaim the engine's device memory."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from octavo.api.admin.pause import PauseMode
from octavo.engine.remote_control import RemoteControl


def sleep_router(control: RemoteControl) -> APIRouter:
    """Routes that give memory back and take it again."""
    router = APIRouter(tags=["admin"])

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
