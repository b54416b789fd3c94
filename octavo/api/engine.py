"""The engine interface of the routers; implemented by :class:`octavo.async_llm.AsyncLLM` and by fakes in tests."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from octavo.config import ModelSettings
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.pooling import Pooled
from octavo.outputs.stream import TextTaker
from octavo.records import EngineInfo, PreparedRequest, PromptType, RequestOutput, SamplingParams
from octavo.telemetry.metrics import Metrics
from octavo.tokenization.tokenizer import Tokenizer


class ServingEngine(Protocol):
    """A started engine."""

    @property
    def model_name(self) -> str:
        """What the model is called unless the settings name it."""

    @property
    def model_settings(self) -> ModelSettings:
        """The settings of the model."""

    @property
    def info(self) -> EngineInfo:
        """Limits of model and cache."""

    @property
    def metrics(self) -> Metrics:
        """What ``/metrics`` shows."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None if the engine works on token ids alone."""

    @property
    def input_processor(self) -> InputProcessor:
        """Where sampling defaults come from."""

    @property
    def pooling_processor(self) -> PoolingProcessor:
        """Checks and tokenises the inputs of pooling requests."""

    @property
    def chat_renderer(self) -> ChatRenderer | None:
        """None if there is no tokenizer."""

    @property
    def is_healthy(self) -> bool:
        """False while the engine is down."""

    @property
    def fault(self) -> str | None:
        """Why the engine needs the operator, as a sentence; None if it does not."""

    async def pool(self, prepared: Sequence[PreparedRequest]) -> list[Pooled]:
        """The answers of pooling requests, which run side by side; cancelling aborts them.

        Raises:
            OctavoError: a request failed.
        """

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        clip_max_tokens: bool = True,
        take_text: TextTaker | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come; closing the generator aborts the request.

        Args:
            take_text: may be offered tokens with their text; those that it takes are in no output.

        Raises:
            OctavoError: on the first step of the iteration if the request is refused, later if it fails.
        """

    async def abort(self, request_id: str) -> None:
        """End a request: its last output has what there is of it, with the finish reason ``abort``."""
