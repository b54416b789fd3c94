"""vLLM's option classes: dictionaries in Octavo, and what is named but not supported."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.errors import InvalidRequestError


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


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter. It can be made and passed around; a request that asks for one is rejected with an error.

    Raises:
        InvalidRequestError: the id is below 1.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise InvalidRequestError(f"lora_int_id must be at least 1, got {self.lora_int_id}.", "lora_int_id")

    @property
    def adapter_id(self) -> int:
        """Its number."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """Its name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The adapter's path."""
        return self.lora_path
