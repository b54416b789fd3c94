"""The asynchronous entry point, with the engine in a separate process."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from octavo.config import EngineConfig, ModelSettings
from octavo.config.vllm_config import EngineArguments, VllmConfig, VllmModelConfig
from octavo.engine.child import EngineChild
from octavo.engine.lifecycle import EngineLifecycle
from octavo.engine.messages import check_sendable
from octavo.engine.remote_control import RemoteControl
from octavo.errors import ConfigError, EngineDeadError, OctavoError
from octavo.inputs.admission import Admitted, QueueAdmission
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.foreign import reject_foreign
from octavo.inputs.frontend import TextFrontend
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.in_flight import RequestsInFlight, fail_futures
from octavo.outputs.pooling import Pooled, checked
from octavo.outputs.processor import error_of
from octavo.outputs.stream import OutputStream, TextTaker
from octavo.records import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    PoolingParams,
    PreparedRequest,
    PromptType,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StepOutputs,
)
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.tracing import Tracer
from octavo.tokenization import Tokenizer

if TYPE_CHECKING:  # takes a second to import, and not everybody asks for a tokenizer
    from transformers import PreTrainedTokenizerBase

_LONG_TEXT = 4096
_LONG_LISTS = 1 << 13


class AsyncLLM(RemoteControl):
    """A model served to many callers of one event loop.

    The engine runs in a process of its own. If that dies it is started again, and requests in flight continue where
    they were: callers see a pause. Its life is the business of :class:`EngineLifecycle`, requests and their replay
    that of :class:`RequestsInFlight`, limits and metrics that of :class:`QueueAdmission`.

    Args:
        settings: the engine's settings; None takes those of ``engine_settings``.
        chat_template: a chat template, or a file with one, instead of the model's own.
        address: where to listen for an engine supervised by another process; by default this object runs its own.
        index: place among the frontends of that engine; part of the metrics' labels.
        served_name: what metrics and traces call the model; by default what the settings call it.
        child: an engine process to begin with, started but not launched; by default one is started.
        settles_reasoning: let structured output begin after the model's reasoning, if ``reasoning_parser`` is set;
            servers do that themselves.
        engine_settings: any setting of :mod:`octavo.config.settings` by name, ``model`` among them.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self,
        settings: EngineConfig | None = None,
        *,
        chat_template: str | None = None,
        address: str | None = None,
        index: int = 0,
        served_name: str | None = None,
        child: EngineChild | None = None,
        settles_reasoning: bool = True,
        **engine_settings: object,
    ) -> None:
        if settings is None:
            settings = EngineConfig.from_kwargs(**engine_settings)
        elif engine_settings:
            raise ConfigError("Give the settings as one object or by name, not both.")
        if any(not isinstance(spec, str) for spec in settings.model.logits_processors or []):
            raise ConfigError(
                "The engine runs in another process: give logits_processors by name, as 'package.module:Class'."
            )
        self.settings = settings
        self.model_name = settings.model.model
        self.index = index
        self._served_name = served_name or self.model_name
        self._chat_template = chat_template
        self._settles_reasoning = settles_reasoning
        self._engine = EngineLifecycle(settings, self, address, child)
        self._requests = RequestsInFlight()
        self._frontend: TextFrontend | None = None
        self._inputs: InputProcessor | None = None
        self._admission: QueueAdmission | None = None
        self._numbers = itertools.count(1)
        self._start_lock = asyncio.Lock()
        endpoint = settings.logging.otlp_traces_endpoint
        self._tracer = None if endpoint is None else Tracer(endpoint)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArguments | None = None,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: object = None,
        **settings: object,
    ) -> Self:
        """Build from an ``AsyncEngineArgs``, or from flat keyword arguments, named like the settings.

        Args:
            start_engine_loop: taken for compatibility.
            usage_context: taken for compatibility.
            stat_loggers: not supported; ``metrics`` has the figures.
        """
        reject_foreign(stat_loggers=stat_loggers)
        if engine_args is None:
            return cls(EngineConfig.from_kwargs(**settings))
        if settings:
            raise ConfigError("Give the settings as one object or by name, not both.")
        return cls(engine_args.create_engine_config())

    @property
    def error(self) -> OctavoError | None:
        """Why the engine is gone for good, None while it is not."""
        return self._engine.error

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer, as an object of Hugging Face transformers that is its callers' own.

        Raises:
            ConfigError: the model was loaded without one, or is not started.
        """
        if self._frontend is None:
            raise ConfigError("There is no tokenizer: the engine is not started.")
        return self._frontend.callers_tokenizer(self.info.max_model_len)

    @property
    def vllm_config(self) -> VllmConfig:
        """Settings as they were decided when the engine started, under vLLM's names."""
        return VllmConfig.of_engine(self.settings, self.info)

    @property
    def model_config(self) -> VllmModelConfig:
        """The part about the model."""
        return self.vllm_config.model_config

    async def check_health(self) -> None:
        """Return if the engine is there and gets on.

        Raises:
            OctavoError: it is gone for good, or does not get on.
        """
        if not self.is_healthy:
            raise self.error or EngineDeadError(self.fault or "The engine is not running at the moment.")

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None with ``skip_tokenizer_init``."""
        return None if self._frontend is None else self._frontend.tokenizer

    @property
    def model_settings(self) -> ModelSettings:
        """The settings of the model."""
        return self.settings.model

    @property
    def chat_renderer(self) -> ChatRenderer | None:
        """Renders conversations; None without a tokenizer."""
        return None if self._frontend is None else self._frontend.chat_renderer

    @property
    def input_processor(self) -> InputProcessor:
        """Checks and tokenises prompts."""
        assert self._inputs is not None, "start() comes first"
        return self._inputs

    @property
    def pooling_processor(self) -> PoolingProcessor:
        """The same for pooling requests."""
        template = None if self._frontend is None else self._frontend.own_template
        return PoolingProcessor(self.info, self.tokenizer, template)

    @property
    def info(self) -> EngineInfo:
        """The engine's description."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """The engine's latest figures."""
        return self._engine.stats

    @property
    def metrics(self) -> Metrics:
        """What Prometheus may scrape."""
        return self._started_admission.metrics

    @property
    def is_healthy(self) -> bool:
        """Whether the engine is there and gets on; False while it is starting, also again."""
        if self._engine.error is not None or not self._engine.is_connected:
            return False
        return self.fault is None and not self.is_stuck

    @property
    def fault(self) -> str | None:
        """Why the engine needs the operator, as a sentence; None if it does not."""
        return self.stats.fault or None

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has work, but no step ended for longer than ``step_timeout``."""
        return self._engine.is_stuck(has_unfinished_requests=self._requests.has_unfinished)

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self._requests)

    @property
    def _started_admission(self) -> QueueAdmission:
        assert self._admission is not None, "start() comes first"
        return self._admission

    async def start(self) -> None:
        """Start the engine and wait until it is loaded; otherwise the first request does so.

        Raises:
            OctavoError: the model or a setting is wrong.
            EngineDeadError: the engine did not start.
        """
        async with self._start_lock:
            if self._engine.error is not None:
                raise self._engine.error
            if self._admission is None:
                await self._start()

    async def _start(self) -> None:
        self._engine.start()
        try:
            # The engine process loads weights in the meantime.
            self._frontend = await asyncio.to_thread(TextFrontend.load, self.settings, self._chat_template)
            self._requests.set_tokenizer(self._frontend.tokenizer)
            await self._engine.wait_until_started()
        except BaseException:
            await self.shutdown()
            raise
        self._inputs = self._frontend.input_processor(self.info, settles_reasoning=self._settles_reasoning)
        self._admission = QueueAdmission(self.settings, self.info, self._served_name, self.index, self._tracer)

    async def wait_until_dead(self) -> None:
        """Return when the engine is gone for good."""
        await self._engine.wait_until_dead()

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        truncate_prompt_tokens: int | None = None,
        clip_max_tokens: bool = True,
        take_text: TextTaker | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; closing the generator aborts the request.

        Args:
            sampling_params: None takes the model's defaults; ``output_kind`` decides what each output holds.
            clip_max_tokens: cut ``max_tokens`` to what the context has room for, rather than refuse the request.
            take_text: is offered tokens of which there is nothing to say but their text, with ``output_kind`` DELTA;
                those that it takes are in no output and wake no reader. See :meth:`OutputStream.relay`.

        Raises:
            InvalidRequestError: the request is wrong; raised before the first output.
            QueueFullError: too many requests wait already.
            DeadlineExceededError: the caller's deadline came first.
            RequestFailedError: the request failed in the engine.
            EngineDeadError: the engine is gone for good.
        """
        if self._admission is None:
            await self.start()
        self._check_admission()
        process = partial(
            self.input_processor.process,
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            cache_salt=cache_salt,
            truncate_prompt_tokens=truncate_prompt_tokens,
            clip_max_tokens=clip_max_tokens,
        )
        # Tokenising a long text takes long and lets go of the interpreter; a short one is not worth a thread.
        is_long = _is_long(prompt) or _has_long_lists(sampling_params)
        prepared = await asyncio.to_thread(process) if is_long else process()
        check_sendable(prepared.params)
        # Much may have happened while a long text was tokenised.
        self._check_admission(len(prepared.prompt_token_ids))
        self._requests.check_free([request_id])
        log = self._started_admission.log
        # The log sees outputs on the way to the caller.
        stream = OutputStream(
            is_delta=prepared.params.output_kind is RequestOutputKind.DELTA,
            take_text=None if log.is_on else take_text,
        )
        self._number(prepared)
        admitted = self._begin([prepared], stream.fail)
        self._requests.add_stream(prepared, stream, has_relay=take_text is not None)
        finished = False
        reasons: list[str | None] = []
        try:
            await self._send(prepared.children)
            while not finished:
                output = await stream.get()
                finished = output.finished
                if finished:
                    reasons = [completion.finish_reason for completion in output.outputs]
                if log.is_on:
                    log.add_output(output, prepared.params.output_kind)
                error = error_of(output)
                if error is not None:
                    raise error
                yield output
        finally:
            self._started_admission.end(admitted, reasons)
            self._requests.remove_stream(request_id)
            if not finished:
                await self._abort_in_engine(request_id)
            self._forget([child.request_id for child in prepared.children])

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> AsyncGenerator[Pooled, None]:
        """The vector of a prompt, as the one output; closing the generator aborts the request. Raises as generate."""
        if self._admission is None:
            await self.start()
        options = PoolingOptions(priority, cache_salt, truncate_prompt_tokens)
        process = partial(self.pooling_processor.process, request_id, prompt, pooling_params, None, options)
        prepared = await asyncio.to_thread(process) if _is_long(prompt) else process()
        for output in await self.pool([prepared]):
            yield output

    async def pool(self, prepared: Sequence[PreparedRequest]) -> list[Pooled]:
        """Run pooling requests side by side; if one fails, or the caller is cancelled, the others are aborted.

        Raises:
            InvalidRequestError: a request id is in use.
            QueueFullError: too many requests wait already.
            DeadlineExceededError: the caller's deadline came first.
            RequestFailedError: a request failed in the engine.
            EngineDeadError: the engine is gone for good.
        """
        self._check_admission(sum(len(request.prompt_token_ids) for request in prepared))
        request_ids = [request.request_id for request in prepared]
        self._requests.check_free(request_ids)
        futures = [asyncio.get_running_loop().create_future() for _ in prepared]
        admitted = self._begin(prepared, partial(fail_futures, futures))
        self._requests.add_vectors(prepared, futures)
        try:
            await self._send([request.children[0] for request in prepared])
            return [checked(await future) for future in futures]
        finally:
            self._started_admission.end(admitted, [])
            unfinished = self._requests.remove_vectors(request_ids, futures)
            self._started_admission.meter.end(unfinished, "abort")
            await self._engine.abort(unfinished)
            self._forget(request_ids)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests: the last output of each has what there is of it, with the finish reason ``abort``."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if self._requests.end_early(name):
                await self._abort_in_engine(name)

    async def call_engine(self, name: str, **arguments: Any) -> Any:
        """Run one of the engine's control functions; see :class:`RemoteControl`."""
        return await self._engine.call(name, **arguments)

    async def shutdown(self) -> None:
        """End requests, the engine process and all that was set up; may be called more than once."""
        await self._engine.shutdown()
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            await asyncio.to_thread(tracer.shutdown)

    def close(self) -> None:
        """The same at once, without waiting for anything; for those that cannot await :meth:`shutdown`."""
        self._engine.close()
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.shutdown()

    def handle_ready(self) -> list[EngineRequest]:
        """A new engine is there: what it is to work on."""
        requests, failures = self._requests.resume()
        self.handle_outputs(failures)
        return requests

    def handle_outputs(self, outputs: StepOutputs) -> None:
        """Handle the engine's outputs."""
        if self._admission is not None:
            self._admission.metrics.record_stats(self.stats)
            self._admission.observe(outputs)
        if not outputs:
            return
        self._send_soon(self._requests.replays.note_outputs(outputs))
        ended, overrun = self._requests.process(outputs)
        for request_id in overrun:
            self._engine.run_soon(self._abort_in_engine(request_id))
        if ended and self._admission is not None:
            self._admission.meter.end(ended, "stop")
            self._engine.run_soon(self._engine.abort(ended))

    def handle_failure(self, error: OctavoError) -> None:
        """Nothing more will come for the requests in flight."""
        self._requests.fail_all(error)

    def _check_admission(self, num_tokens: int = 0) -> None:
        if self._engine.error is not None:
            raise self._engine.error
        self._started_admission.check(num_tokens)

    def _number(self, prepared: PreparedRequest) -> None:
        """Make an internal id unique: outputs of an aborted request with the same id may still arrive."""
        suffix = f"#{next(self._numbers)}"
        for child in prepared.children:
            child.request_id += suffix
            if child.leader_id is not None:
                child.leader_id += suffix

    def _begin(self, prepared: Sequence[PreparedRequest], fail: Callable[[Exception], None]) -> Admitted:
        admitted = self._started_admission.begin(prepared, fail)
        if not self._requests.has_unfinished:
            self._engine.note_progress()
        return admitted

    async def _send(self, requests: list[EngineRequest]) -> None:
        """Hand requests to the engine; if none is there, the next one gets them as replays."""
        if self._engine.is_connected:
            self._requests.replays.enter(requests)
        await self._engine.add_requests(requests)

    def _send_soon(self, requests: list[EngineRequest]) -> None:
        if requests:
            self._engine.run_soon(self._engine.add_requests(requests))

    def _forget(self, request_ids: list[str]) -> None:
        """Requests are over: a suspect that waited for them may be tried now."""
        self._send_soon(self._requests.replays.forget(request_ids))

    async def _abort_in_engine(self, request_id: str) -> None:
        engine_ids = self._requests.abort(request_id)
        self._started_admission.meter.end(engine_ids, "abort")
        await self._engine.abort(engine_ids)


def _is_long(prompt: PromptType) -> bool:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return isinstance(text, str) and len(text) > _LONG_TEXT


def _has_long_lists(params: SamplingParams | None) -> bool:
    if params is None:
        return False
    lists = (params.logit_bias, params.allowed_token_ids, params.stop_token_ids, params.bad_words)
    return sum(len(entries) for entries in lists if isinstance(entries, Sized)) > _LONG_LISTS
