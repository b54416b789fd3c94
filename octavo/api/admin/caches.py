"""``/reset_prefix_cache`` and similar routes."""

from fastapi import APIRouter, Response

from octavo.engine.remote_control import RemoteControl


def caches_router(control: RemoteControl) -> APIRouter:
    """Routes that empty caches."""
    router = APIRouter(tags=["admin"])

    @router.post("/reset_prefix_cache", summary="Forget cached prefixes; success is false while requests run.")
    async def reset_prefix_cache(reset_running_requests: bool = False, reset_external: bool = False) -> dict[str, bool]:
        # There is no cache outside the engine that reset_external could mean.
        return {"success": await control.reset_prefix_cache(reset_running_requests)}

    @router.post("/reset_mm_cache", summary="No effect: text models have no multimodal cache.")
    @router.post("/reset_encoder_cache", summary="No effect: text models have no encoder cache.")
    async def reset_nothing() -> Response:
        return Response()

    return router
