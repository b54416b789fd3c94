"""An engine in this process that its caller steps by hand, with vLLM's interface."""

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from octavo.config import EngineConfig
from octavo.config.vllm_config import EngineArguments, VllmConfig, VllmModelConfig
from octavo.engine.core import EngineCore
from octavo.engine.local_control import LocalControl
from octavo.garbage import freeze_until_exit
from octavo.inputs.foreign import prompt_truncation, reject_foreign
from octavo.inputs.frontend import TextFrontend
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.meter import RequestMeter
from octavo.outputs.pooling import Pooled, PoolingOutputs
from octavo.outputs.processor import OutputProcessor
from octavo.records import PoolingParams, PreparedRequest, PromptType, RequestOutput, SamplingParams, StepOutputs
from octavo.tokenization import Tokenizer

if TYPE_CHECKING:  # what not everybody asks for: transformers take a second to import, prometheus_client 10 ms
    from transformers import PreTrainedTokenizerBase

    from octavo.telemetry.metrics import Metrics
    from octavo.telemetry.reader import Metric

logger = logging.getLogger(__name__)


class LLMEngine(LocalControl):
    """A model, its tokenizer and the requests in flight; nothing runs but in :meth:`step`.

    Args:
        chat_template: a chat template, or a file with one, instead of the model's own.

    Attributes:
        settings: the engine's settings.
        frontend: tokenizer, chat template and sampling defaults.

    Raises:
        OctavoError: the model or a setting is wrong.
    """

    def __init__(self, settings: EngineConfig, *, chat_template: str | None = None) -> None:
        self.settings = settings
        self.frontend = TextFrontend.load(settings, chat_template)
        self.core = self._engine = EngineCore(settings)
        self._take_control(settings)
        self.inputs: InputProcessor = self.frontend.input_processor(self.core.info)
        self.outputs = OutputProcessor(self.frontend.tokenizer)
        self._pooling = PoolingOutputs()
        self._pooled: list[Pooled] = []
        self._metrics: Metrics | None = None
        self._meter: RequestMeter | None = None
        if not settings.logging.disable_log_stats:
            self._meter = RequestMeter(self._open_metrics())
        self._release = weakref.finalize(self, self.core.shutdown)
        self._release.atexit = False  # the system frees what a process leaves, and workers end with it
        # What exists by now stays; a garbage collection between two steps need not look at it again.
        freeze_until_exit()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArguments,
        usage_context: object = None,
        stat_loggers: object = None,
        enable_multiprocessing: bool = False,
    ) -> Self:
        """Build from an ``EngineArgs``.

        Args:
            usage_context, enable_multiprocessing: taken for compatibility; the engine runs in this process.
            stat_loggers: not supported; :meth:`get_metrics` has the figures.
        """
        reject_foreign(stat_loggers=stat_loggers)
        return cls(engine_args.create_engine_config())

    @property
    def vllm_config(self) -> VllmConfig:
        """Settings as they were decided, under vLLM's names."""
        return VllmConfig.of_engine(self.settings, self.core.info)

    @property
    def model_config(self) -> VllmModelConfig:
        """The part about the model."""
        return self.vllm_config.model_config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None with ``skip_tokenizer_init``."""
        return self.frontend.tokenizer

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer, as an object of Hugging Face transformers that is its callers' own.

        Raises:
            ConfigError: the model was loaded without one.
        """
        return self.frontend.callers_tokenizer(self.core.info.max_model_len)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model does: ``generate``, or its pooling tasks."""
        pooling = self.core.info.pooling
        return ("generate",) if pooling is None else tuple(pooling.tasks)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: object = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: object = None,
        priority: int = 0,
    ) -> str:
        """Queue a request; :meth:`step` brings its outputs.

        Args:
            request_id: unique among the requests in flight.
            arrival_time: seconds since the epoch; now if None.
            lora_request, trace_headers: not supported.
            tokenization_kwargs: ``truncate_prompt_tokens``.
            priority: lower runs first under the priority policy.

        Raises:
            InvalidRequestError: the request is wrong, or its id is in use.
        """
        reject_foreign(lora_request=lora_request, trace_headers=trace_headers)
        truncate = prompt_truncation(tokenization_kwargs)
        if isinstance(params, PoolingParams):
            processor = PoolingProcessor(self.core.info, self.frontend.tokenizer, self.frontend.own_template)
            pooling_options = PoolingOptions(priority, truncate_prompt_tokens=truncate)
            prepared = processor.process(request_id, prompt, params, None, pooling_options)
            self.core.add_request(prepared.children[0])
            self._pooling.add_request(prepared, self._pooled.append)
        else:
            prepared = self.inputs.process(
                request_id,
                prompt,
                params,
                priority=priority,
                arrival_time=arrival_time,
                truncate_prompt_tokens=truncate,
            )
            self.submit(prepared)
        return request_id

    def submit(self, prepared: PreparedRequest) -> None:
        """Queue a request for text that is checked already.

        Raises:
            InvalidRequestError: it can never run, or its id is in use.
        """
        for child in prepared.children:
            self.core.add_request(child)
        self.outputs.add_request(prepared)
        if self._meter is not None:
            self._meter.begin(prepared)

    def step(self) -> list[RequestOutput | Pooled]:
        """Run one step and return what is new of each request, as its ``output_kind`` says.

        A request that failed has its sentence in ``error``.

        Raises:
            InvalidRequestError: the engine sleeps.
        """
        held = self._held.copy()
        self._held.clear()
        if not held:
            self.core.check_awake()
            held.append(self.core.step())
        return [output for step_outputs in held for output in self._process(step_outputs)]

    def _process(self, step_outputs: StepOutputs) -> list[RequestOutput | Pooled]:
        if self._meter is not None:
            self._meter.observe(step_outputs)
        self._pooling.process(step_outputs)
        processed = self.outputs.process(step_outputs)
        if processed.aborts:
            self.core.abort(processed.aborts)
            if self._meter is not None:
                self._meter.end(processed.aborts, "stop")
        pooled = self._pooled.copy()
        self._pooled.clear()
        return [*processed.outputs, *pooled]

    def abort_request(self, request_ids: str | Iterable[str], internal: bool = False) -> None:
        """End requests without further outputs; ids that are not in flight are passed over."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            ended = [*self.outputs.abort(request_id), *self._pooling.abort([request_id])]
            self.core.abort(ended)
            if self._meter is not None:
                self._meter.end(ended, "abort")

    def abort_all_requests(self) -> None:
        """End all requests without further outputs."""
        self.abort_request([*self.outputs.request_ids, *self._pooling.request_ids])

    def has_unfinished_requests(self) -> bool:
        """Whether :meth:`step` has more to bring."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """Requests in flight."""
        return self.outputs.num_unfinished + len(self._pooling)

    def get_metrics(self) -> "list[Metric]":
        """Figures as of now, with vLLM's names.

        Those of single requests, such as latencies, are counted only with ``disable_log_stats=False``.
        """
        from octavo.telemetry.reader import read_metrics

        metrics = self._open_metrics()
        metrics.record_stats(self.core.stats)
        return read_metrics(metrics.registry)

    def do_log_stats(self) -> None:
        """Write a line of figures to the log."""
        stats = self.core.stats
        logger.info(
            "%d requests run, %d wait; %.1f %% of the cache in use; %d tokens generated so far",
            stats.num_running,
            stats.num_waiting,
            100 * stats.cache_usage,
            stats.generation_tokens,
        )

    def shutdown(self) -> None:
        """Give the model's memory back; the object cannot be used afterwards.

        An object that nobody refers to any longer is shut down, too.
        """
        self._release()

    def _open_metrics(self) -> "Metrics":
        if self._metrics is None:
            from octavo.telemetry.metrics import Metrics

            self._metrics = Metrics(self.settings.model.model, self.core.info.max_model_len)
            self._metrics.set_cache_info(self.core.info)
        return self._metrics
