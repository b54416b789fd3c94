"""New weights for a running engine, as reinforcement learning needs them.

The order is pause, start, update, finish, resume. Weights come from safetensors files in folders below the operator's
``weight_update_dir``; with no folder named, from where the model came from.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from octavo.api.frontend import Frontend
from octavo.engine.remote_control import RemoteControl
from octavo.errors import InvalidRequestError

Version = Annotated[str, Field(max_length=256)]


class InitRequest(BaseModel):
    """How weights will come."""

    init_info: dict[str, Any] = {}


class UpdateInfo(BaseModel):
    """Where to read new weights: a folder below ``weight_update_dir``; the model's own source if none is named."""

    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(max_length=1024)] | None = None


class UpdateRequest(BaseModel):
    """New weights."""

    update_info: UpdateInfo = UpdateInfo()


class FinishRequest(BaseModel):
    """What the new weights are called."""

    weight_version: Version | None = None


class VersionRequest(BaseModel):
    """What the weights are called."""

    new_version: Version


class CheckRequest(BaseModel):
    """What to do with checksums."""

    action: Literal["checksum", "reset", "compare"]
    baseline: Annotated[dict[str, str], Field(max_length=100_000)] | None = None


def weights_router(frontend: Frontend, control: RemoteControl) -> APIRouter:
    """Routes that replace weights and report their version."""
    router = frontend.json_router("admin")

    @router.post("/init_weight_transfer_engine", summary="Agree on how weights come: from files.")
    async def init(body: InitRequest) -> dict[str, str]:
        backend = body.init_info.get("backend", "disk")
        if backend != "disk":
            raise InvalidRequestError(
                f"Weights come from files here: backend is 'disk', not {str(backend)[:80]!r}.", "init_info"
            )
        return {"message": "Weights come from files."}

    @router.post("/shutdown_weight_transfer_engine", summary="Nothing: files need no connection.")
    async def shutdown() -> dict[str, str]:
        return {"message": "There was no connection to close."}

    @router.post("/start_weight_update", summary="Announce new weights; the engine is paused.")
    async def start() -> dict[str, str]:
        await control.start_weight_update()
        return {"message": "Send the weights."}

    @router.post("/update_weights", summary="Read weights from a folder of the owner's, or from the model's source.")
    async def update(body: UpdateRequest) -> dict[str, str]:
        await control.update_weights(body.update_info.path)
        return {"message": "The weights were read."}

    @router.post("/finish_weight_update", summary="End an update.")
    async def finish(body: FinishRequest) -> dict[str, str]:
        await control.finish_weight_update(body.weight_version)
        return {"message": "The update is finished."}

    @router.post("/update_weight_version", summary="Name the weights.")
    async def update_version(body: VersionRequest) -> dict[str, Any]:
        await control.update_weight_version(body.new_version)
        return {"success": True, "new_version": body.new_version}

    @router.get("/weight_info", summary="What the weights are called.")
    async def info() -> dict[str, str]:
        return {"weight_version": await control.get_weight_version()}

    @router.post("/weight_checker", summary="Checksums of the weights, or how they differ from others.")
    async def check(body: CheckRequest) -> dict[str, Any]:
        if body.action == "reset":
            raise InvalidRequestError("Weights cannot be corrupted on purpose; use 'checksum' or 'compare'.", "action")
        checksums = await control.compute_weight_checksums()
        if body.action == "checksum":
            return {"status": "ok", "checksums": checksums}
        if body.baseline is None:
            raise InvalidRequestError("Give a baseline to compare with.", "baseline")
        names = sorted(checksums.keys() | body.baseline.keys())
        mismatches = [name for name in names if checksums.get(name) != body.baseline.get(name)]
        return {"match": not mismatches, "mismatches": mismatches}

    @router.get("/get_world_size", summary="Devices that share the model.")
    async def world_size(include_dp: bool = True) -> dict[str, int]:
        return {"world_size": control.settings.device.tensor_parallel_size}

    return router
