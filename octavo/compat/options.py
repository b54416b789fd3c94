"""vLLM's option classes that are dictionaries in Octavo."""

from enum import StrEnum
from typing import Any


class PoolerConfig(dict[str, Any]):
    """How vectors are made: the setting ``pooler_config``, from keywords."""


class ProfilerConfig(dict[str, Any]):
    """Where profiles go: the setting ``profiler_config``, from keywords."""


class UsageContext(StrEnum):
    """Where an engine is used; Octavo sends no usage statistics."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
