"""``/v1/models``."""

import time
from datetime import UTC, datetime

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.api.errors import is_anthropic
from octavo.api.frontend import Frontend
from octavo.api.openai.answers import ModelCard, ModelList
from octavo.api.pieces import json_answer


def models_router(frontend: Frontend) -> APIRouter:
    """Routes that list the model under each of its names, in the shape of the client's protocol."""
    router = APIRouter(prefix="/v1/models", tags=["models"])
    started = int(time.time())

    def card(name: str) -> ModelCard:
        return ModelCard(name, started, frontend.engine.model_name, frontend.engine.info.max_model_len)

    def info(name: str) -> ModelInfo:
        length = frontend.engine.info.max_model_len
        return ModelInfo(name, name, datetime.fromtimestamp(started, UTC), length, length)

    @router.get("", summary="List the models that are served.")
    async def list_models(request: Request) -> Response:
        if is_anthropic(request.scope):
            models = [info(name) for name in frontend.model_names]
            return json_answer(ModelPage(models, models[0].id, models[-1].id))
        return json_answer(ModelList([card(name) for name in frontend.model_names]))

    @router.get("/{name:path}", summary="Describe one model.")
    async def get_model(name: str, request: Request) -> Response:
        served = frontend.check_model(name)
        return json_answer(info(served) if is_anthropic(request.scope) else card(served))

    return router


class ModelInfo(msgspec.Struct, tag_field="type", tag="model"):
    """A served model."""

    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int
    max_tokens: int
    lifecycle: str = "active"


class ModelPage(msgspec.Struct):
    """All models on one page; there is at least one."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: bool = False
