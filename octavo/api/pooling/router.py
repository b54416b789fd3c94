"""All pooling routes as one router."""

from fastapi import APIRouter

from octavo.api.frontend import Frontend
from octavo.api.pooling.cohere import cohere_router
from octavo.api.pooling.scoring import scoring_router
from octavo.api.pooling.vectors import vectors_router


def pooling_router(frontend: Frontend) -> APIRouter:
    """Embeddings, pooling, classes, scores, ranks."""
    router = APIRouter()
    for make in (vectors_router, scoring_router, cohere_router):
        router.include_router(make(frontend))
    return router
