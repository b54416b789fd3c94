"""Answers from a model loaded here."""

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing

from octavo.async_llm import AsyncLLM
from octavo.cli.backend import AnswerPiece, Message, Sampling
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.records import PromptType, RequestOutputKind, SamplingParams


class LocalBackend:
    """An engine of our own.

    Args:
        chat_template: a chat template, or a file with one, instead of the model's own.
    """

    def __init__(self, config: EngineConfig, chat_template: str | None = None) -> None:
        self._engine = AsyncLLM(config, chat_template=chat_template)
        self._ids = itertools.count()

    @property
    def model_name(self) -> str:
        """The model's name as it was given."""
        return self._engine.model_name

    async def start(self) -> None:
        """Load the model."""
        await self._engine.start()

    async def chat(self, messages: list[Message], sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a conversation."""
        renderer = self._engine.chat_renderer
        if renderer is None:
            raise ConfigError("Chat needs a tokenizer; do not give --skip-tokenizer-init.")
        async with aclosing(self._stream(renderer.render(messages), sampling)) as pieces:
            async for piece in pieces:
                yield piece

    def complete(self, prompt: str, sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a text."""
        return self._stream(prompt, sampling)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.shutdown()

    async def _stream(self, prompt: PromptType, sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        params = self._params(sampling)
        num_tokens = 0
        async with aclosing(self._engine.generate(prompt, params, f"answer-{next(self._ids)}")) as outputs:
            async for output in outputs:
                completion = output.outputs[0]
                num_tokens += len(completion.token_ids)
                yield AnswerPiece(completion.text, num_tokens, completion.finish_reason)

    def _params(self, sampling: Sampling) -> SamplingParams:
        """The model's defaults with what the user set; the answer may fill the context unless limited."""
        params = self._engine.input_processor.default_sampling_params().clone()
        params.max_tokens = None
        for name, value in sampling.items():
            setattr(params, name, value)
        params.output_kind = RequestOutputKind.DELTA
        params.verify()
        return params
