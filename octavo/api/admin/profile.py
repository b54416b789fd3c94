"""``/start_profile`` and ``/stop_profile``."""

from fastapi import APIRouter

from octavo.engine.remote_control import RemoteControl


def profile_router(control: RemoteControl) -> APIRouter:
    """Routes that record what the engine does, if ``profiler_config`` says where to."""
    router = APIRouter(tags=["admin"])

    @router.post("/start_profile", summary="Begin to record what host and device do.")
    async def start_profile() -> dict[str, str]:
        await control.start_profile()
        return {"status": "profiling"}

    @router.post("/stop_profile", summary="Write the record, and say where.")
    async def stop_profile() -> dict[str, str]:
        return {"status": "stopped", "file": await control.stop_profile()}

    return router
