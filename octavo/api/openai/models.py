"""``/v1/models``: what is served."""

import time

from fastapi import APIRouter, Response

from octavo.api.frontend import Frontend
from octavo.api.openai.responses import ENCODER, ModelCard, ModelList


def models_router(frontend: Frontend) -> APIRouter:
    """Routes that list the model under each of its names."""
    router = APIRouter(prefix="/v1/models", tags=["models"])
    started = int(time.time())

    def card(name: str) -> ModelCard:
        return ModelCard(name, started, frontend.engine.model_name, frontend.engine.info.max_model_len)

    @router.get("", summary="List the models that are served.")
    async def list_models() -> Response:
        return json_answer(ENCODER.encode(ModelList([card(name) for name in frontend.model_names])))

    @router.get("/{name:path}", summary="Describe one model.")
    async def get_model(name: str) -> Response:
        return json_answer(ENCODER.encode(card(frontend.check_model(name))))

    return router


def json_answer(body: bytes) -> Response:
    """Encoded JSON as a response."""
    return Response(body, media_type="application/json")
