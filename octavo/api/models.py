"""``/v1/models``."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.api.errors import is_anthropic
from octavo.api.frontend import Frontend
from octavo.api.openai.answers import ModelCard, ModelList
from octavo.api.pieces import ENCODER, json_answer


def models_router(frontend: Frontend) -> APIRouter:
    """Routes that list the model under each of its names, in the shape of the client's protocol."""
    router = APIRouter(prefix="/v1/models", tags=["models"])
    started = int(time.time())

    def card(name: str) -> ModelCard:
        return ModelCard(name, started, frontend.engine.model_name, frontend.engine.info.max_model_len)

    def info(name: str) -> ModelInfo:
        return model_info(name, started, frontend.engine.info.max_model_len)

    @router.get("", summary="List the models that are served.")
    async def list_models(request: Request) -> Response:
        if is_anthropic(request.scope):
            return json_answer(ENCODER.encode(model_page([info(name) for name in frontend.model_names])))
        return json_answer(ENCODER.encode(ModelList([card(name) for name in frontend.model_names])))

    @router.get("/{name:path}", summary="Describe one model.")
    async def get_model(name: str, request: Request) -> Response:
        served = frontend.check_model(name)
        return json_answer(ENCODER.encode(info(served) if is_anthropic(request.scope) else card(served)))

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
    """All models on one page."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: bool = False


def model_info(name: str, started: int, max_model_len: int) -> ModelInfo:
    """One model under one of its names; ``started`` is in seconds on the epoch clock."""
    return ModelInfo(name, name, datetime.fromtimestamp(started, UTC), max_model_len, max_model_len)


def model_page(models: Sequence[ModelInfo]) -> ModelPage:
    """The list; there is at least one model."""
    return ModelPage(list(models), models[0].id, models[-1].id)
