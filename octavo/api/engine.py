"""What the routers need of an engine: :class:`octavo.async_llm.AsyncLLM` has it, and so has a test's fake."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from octavo.records import EngineInfo, PromptType, RequestOutput, SamplingParams, TokensPrompt
from octavo.telemetry.metrics import Metrics
from octavo.tokenization.tokenizer import Tokenizer


class ServingInputProcessor(Protocol):
    """Knows the model's defaults."""

    def default_sampling_params(self) -> SamplingParams:
        """What applies where a request says nothing; the caller may change it."""


class ServingChatRenderer(Protocol):
    """Writes conversations as prompts."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
    ) -> TokensPrompt:
        """Apply the chat template; may be called from any thread."""


class ServingEngine(Protocol):
    """A started engine."""

    @property
    def model_name(self) -> str:
        """What the model is called unless the settings name it."""

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
    def input_processor(self) -> ServingInputProcessor:
        """Where sampling defaults come from."""

    @property
    def chat_renderer(self) -> ServingChatRenderer | None:
        """None if there is no tokenizer."""

    @property
    def is_healthy(self) -> bool:
        """False while the engine is down."""

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come; closing the generator aborts the request.

        Raises:
            OctavoError: on the first step of the iteration if the request is refused, later if it fails.
        """
