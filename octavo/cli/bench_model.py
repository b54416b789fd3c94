"""The model of an offline benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.llm import LLM
from octavo.telemetry.logs import configure_logging

# Every vocabulary has these; without a tokenizer more is not known.
COMMON_TOKEN_IDS = range(256, 1256)


def load_model(settings: Mapping[str, Any]) -> tuple[LLM, Sequence[int]]:
    """Load a model; returns it with the token ids that prompts may hold.

    Args:
        settings: by name, checked already.

    Raises:
        OctavoError: the model or a setting is wrong.
    """
    configure_logging(settings.get("log_level", "warning"))
    model = LLM(**settings)
    tokenizer = model.llm_engine.tokenizer
    return model, COMMON_TOKEN_IDS if tokenizer is None else range(len(tokenizer))
