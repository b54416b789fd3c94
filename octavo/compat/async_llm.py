"""vLLM's ``AsyncLLM``: its keywords, and a ``shutdown()`` that need not be awaited."""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

import octavo.async_llm
from octavo.errors import EngineDeadError
from octavo.inputs.foreign import prompt_truncation, reject_foreign
from octavo.outputs.pooling import Pooled
from octavo.records import PoolingParams, PromptType, RequestOutput, SamplingParams


class VllmAsyncLLM(octavo.async_llm.AsyncLLM):
    """Octavo's own, as code written for vLLM calls it. The engine starts with the first request."""

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self.is_healthy

    @property
    def is_stopped(self) -> bool:
        """Whether the engine is gone for good."""
        return self.errored

    @property
    def errored(self) -> bool:
        """The same, under its other name."""
        return self.error is not None

    @property
    def dead_error(self) -> BaseException:
        """Why it is gone."""
        return self.error or EngineDeadError("The engine is not running at the moment.")

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: object = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: object = None,
        data_parallel_rank: int | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As of :meth:`octavo.AsyncLLM.generate`.

        Args:
            prompt_text: taken for compatibility; a prompt says it itself.
            tokenization_kwargs: ``truncate_prompt_tokens``.
            lora_request, trace_headers, data_parallel_rank: not supported.
        """
        reject_foreign(lora_request=lora_request, trace_headers=trace_headers, data_parallel_rank=data_parallel_rank)
        if tokenization_kwargs:
            options["truncate_prompt_tokens"] = prompt_truncation(tokenization_kwargs)
        async with aclosing(super().generate(prompt, sampling_params, request_id, **options)) as outputs:
            async for output in outputs:
                yield output

    async def encode(  # type: ignore[override]
        self,
        prompt: PromptType,
        pooling_params: PoolingParams | None,
        request_id: str,
        lora_request: object = None,
        trace_headers: object = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Pooled, None]:
        """As of :meth:`octavo.AsyncLLM.encode`; arguments as of :meth:`generate`."""
        reject_foreign(lora_request=lora_request, trace_headers=trace_headers)
        truncate = prompt_truncation(tokenization_kwargs)
        found = super().encode(prompt, pooling_params, request_id, priority=priority, truncate_prompt_tokens=truncate)
        async with aclosing(found) as outputs:
            async for output in outputs:
                yield output

    def shutdown(self, timeout: float | None = None) -> "_Done":  # type: ignore[override]
        """End everything at once; what is returned may be awaited.

        Args:
            timeout: taken for compatibility.
        """
        self.close()
        return _Done()


class _Done:
    """Something that is over already, to be awaited or not."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
