"""The model list in Anthropic's format."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec


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
