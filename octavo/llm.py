"""The offline entry point, with the engine in this process."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Self, get_args

from tqdm import tqdm

from octavo.config import EngineConfig
from octavo.config.vllm_config import EngineArguments, VllmModelConfig
from octavo.engine.local_control import LocalControl
from octavo.errors import ConfigError, InvalidRequestError
from octavo.garbage import give_memory_back
from octavo.inputs.chat import ContentFormat
from octavo.inputs.foreign import prompt_truncation, reject_foreign
from octavo.llm_beam_search import BeamSearchMixin
from octavo.llm_engine import LLMEngine
from octavo.llm_pooling import NoBar, PoolingMixin, as_prompts, one_each, progress_bar
from octavo.llm_queue import Params, QueueMixin
from octavo.outputs.processor import error_of
from octavo.records import (
    PreparedRequest,
    PromptType,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    TokensPrompt,
)

if TYPE_CHECKING:  # what not everybody asks for: transformers take a second to import, prometheus_client 10 ms
    from transformers import PreTrainedTokenizerBase

    from octavo.telemetry.reader import Metric

Message = dict[str, Any]

_LONG_CALL = 0.2
"""Seconds from which on a call's end gives freed memory back, which takes up to 1.5 ms."""


class LLM(QueueMixin, PoolingMixin, BeamSearchMixin, LocalControl):
    """A model for offline inference, with vLLM's interface.

    Args:
        model: Hugging Face id, folder, GGUF file, or ``bundled:smollm2``.
        chat_template: a chat template, or a file with one, instead of the model's own.
        settings: any setting of :mod:`octavo.config.settings` by name.

    Raises:
        OctavoError: the model or a setting is wrong.
    """

    def __init__(self, model: str, *, chat_template: str | None = None, **settings: Any) -> None:
        given = {"disable_log_stats": True} | settings
        self._take_engine(LLMEngine(EngineConfig.from_kwargs(model=model, **given), chat_template=chat_template))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArguments) -> Self:
        """Build from an ``EngineArgs``."""
        llm = cls.__new__(cls)
        llm._take_engine(LLMEngine.from_engine_args(engine_args))
        return llm

    def _take_engine(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._engine, self._frontend, self._control = engine.core, engine.frontend, engine._control
        self._held = engine._held
        self._inputs, self._outputs = engine.inputs, engine.outputs
        self._request_ids = count()
        self._enqueued = []

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer, as an object of Hugging Face transformers that is its callers' own.

        Raises:
            ConfigError: the model was loaded without one.
        """
        return self.llm_engine.get_tokenizer()

    @property
    def model_config(self) -> VllmModelConfig:
        """What was decided about the model, under vLLM's names."""
        return self.llm_engine.model_config

    def get_metrics(self) -> "list[Metric]":
        """Figures as of now, with vLLM's names; see :meth:`LLMEngine.get_metrics`."""
        return self.llm_engine.get_metrics()

    def get_default_sampling_params(self) -> SamplingParams:
        """Sampling parameters as the model's generation config suggests them."""
        return self._inputs.default_sampling_params()

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., tqdm] = True,
        lora_request: object = None,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: object = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one prompt or several; text, token ids, or a dictionary with ``prompt`` or ``prompt_token_ids``.
            sampling_params: for all prompts, or one for each; None takes the model's defaults.
            use_tqdm: show a progress bar, or the class to show it with.
            priority: for all prompts, or one for each; lower runs first under the priority policy.
            tokenization_kwargs: ``truncate_prompt_tokens``, as of :class:`~octavo.inputs.processor.InputProcessor`.
            lora_request: not supported.
            mm_processor_kwargs: not supported.

        Returns:
            One output per prompt, in order.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; the other requests are ended.
            RequestFailedError: a request failed in the engine.
        """
        reject_foreign(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        items = as_prompts(prompts)
        return self._run(self._prepare(items, sampling_params, priority, tokenization_kwargs), len(items), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., tqdm] = True,
        lora_request: object = None,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        **chat_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: a conversation is a list of messages with ``role`` and ``content``.
            chat_options: as of :meth:`preprocess_chat`; the other arguments as of :meth:`generate`.

        Raises:
            ChatTemplateError: the template is missing or refuses the conversation.
        """
        prompts = self.preprocess_chat(messages, **chat_options)
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm,
            lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
        )

    def enqueue_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., tqdm] = True,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        *,
        tokenization_kwargs: dict[str, Any] | None = None,
        **chat_options: Any,
    ) -> list[str]:
        """Add conversations that :meth:`wait_for_completion` answers; returns their ids, in order.

        ``messages`` and ``chat_options`` are those of :meth:`chat`, the other arguments those of :meth:`enqueue`.

        Raises:
            InvalidRequestError: as of :meth:`enqueue`.
            ChatTemplateError: the template is missing or rejects a conversation.
        """
        prompts = self.preprocess_chat(messages, **chat_options)
        return self.enqueue(
            prompts, sampling_params, lora_request, priority, use_tqdm, tokenization_kwargs=tokenization_kwargs
        )

    def preprocess_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        chat_template: str | None = None,
        chat_template_content_format: ContentFormat = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: object = None,
    ) -> list[TokensPrompt]:
        """Write conversations as prompts, one for each, as :meth:`chat` answers them.

        Args:
            messages: a conversation is a list of messages with ``role`` and ``content``.
            chat_template: template to use instead of the model's.
            add_generation_prompt: end the prompt with the opening of the assistant's turn.
            continue_final_message: let the answer continue where the last message ends.
            tools: descriptions of functions, for the template.
            chat_template_kwargs: further values for the template.
            chat_template_content_format: how the template gets messages' content: ``string`` is one text, ``openai`` a
                list of parts, ``auto`` what the template looks made for.
            mm_processor_kwargs: not supported.

        Raises:
            ChatTemplateError: the template is missing or refuses the conversation.
        """
        reject_foreign(mm_processor_kwargs=mm_processor_kwargs)
        if chat_template_content_format not in get_args(ContentFormat):
            raise InvalidRequestError(
                f"chat_template_content_format is auto, string or openai, not {chat_template_content_format!r}.",
                "chat_template_content_format",
            )
        renderer = self._frontend.chat_renderer
        if renderer is None:
            raise ConfigError("Chat needs a tokenizer; the model was loaded with skip_tokenizer_init.")
        if chat_template is not None:
            renderer = renderer.with_template(chat_template)
        return [
            renderer.render(
                list(conversation),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
                content_format=chat_template_content_format,
            )
            for conversation in _as_conversations(messages)
        ]

    def shutdown(self) -> None:
        """See :meth:`LLMEngine.shutdown`."""
        self.llm_engine.shutdown()

    def _prepare(
        self,
        prompts: list[PromptType],
        sampling_params: Params,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: dict[str, Any] | None,
    ) -> Iterator[PreparedRequest]:
        truncate = prompt_truncation(tokenization_kwargs)
        all_params = one_each(sampling_params, len(prompts), "sampling_params")
        rows = zip(prompts, all_params, one_each(priority, len(prompts), "priority"), strict=True)
        now = time.time()
        return (self._prepare_one(*row, now, truncate) for row in rows)

    def _prepare_one(
        self,
        prompt: PromptType,
        params: SamplingParams | None,
        priority: int | None,
        arrival_time: float,
        truncate: int | None,
    ) -> PreparedRequest:
        return self._inputs.process(
            str(next(self._request_ids)),
            prompt,
            params,
            priority=priority or 0,
            arrival_time=arrival_time,
            truncate_prompt_tokens=truncate,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _run(
        self, prepared: Iterable[PreparedRequest], total: int, use_tqdm: bool | Callable[..., tqdm]
    ) -> list[RequestOutput]:
        self._engine.check_awake()
        if self.llm_engine.has_unfinished_requests():
            if self._enqueued:
                raise InvalidRequestError("There are enqueued requests; call wait_for_completion() first.")
            raise InvalidRequestError("llm_engine has unfinished requests of its own; step it to their ends first.")
        began = time.monotonic()
        coming = iter(prepared)
        started: list[PreparedRequest] = []
        done: dict[str, RequestOutput] = {}
        try:
            with progress_bar(use_tqdm, total) as bar:
                while len(done) < total:
                    self._start_some(coming, started)
                    self._run_step(done, bar)
        finally:
            # After an error or Ctrl-C nothing of this call is left behind.
            for request in started:
                if request.request_id not in done:
                    self.llm_engine.abort_request(request.request_id)
            if time.monotonic() - began > _LONG_CALL:
                give_memory_back()
        return [done[request.request_id] for request in started]

    def _start_some(self, coming: Iterator[PreparedRequest], started: list[PreparedRequest]) -> None:
        """Give the engine what its next steps have room for: the rest is made ready while the device works."""
        plan = self._engine.plan
        num_steps = 1 if started else 1 + plan.num_steps_ahead
        room = num_steps * plan.max_num_batched_tokens
        # Whose turn it is by priority shows only when all are there.
        takes_all = plan.scheduling_policy == "priority"
        while takes_all or (room > 0 and len(self._engine.scheduler.waiting) < plan.max_num_seqs):
            request = next(coming, None)
            if request is None:
                return
            started.append(request)
            self.llm_engine.submit(request)
            room -= len(request.prompt_token_ids)

    def _run_step(self, done: dict[str, RequestOutput], bar: tqdm | NoBar) -> None:
        for output in self.llm_engine.step():
            if not isinstance(output, RequestOutput) or not output.finished:
                continue
            error = error_of(output)
            if error is not None:
                raise error
            done[output.request_id] = output
            bar.update()


def _as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if not messages:
        raise InvalidRequestError("The conversation is empty.", "messages")
    if isinstance(messages[0], dict):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]
