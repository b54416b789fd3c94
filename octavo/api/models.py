"""``/v1/models``."""

import time

from fastapi import APIRouter, Request, Response

from octavo.api.anthropic.models import ModelInfo, model_info, model_page
from octavo.api.errors import is_anthropic
from octavo.api.frontend import Frontend
from octavo.api.json_answer import ENCODER, json_answer
from octavo.api.openai.answers import ModelCard, ModelList


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
