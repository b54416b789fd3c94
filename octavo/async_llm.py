"""The asynchronous face: many requests in flight, the engine in a process of its own."""

import asyncio
import itertools
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.messages import Failed, check_sendable
from octavo.engine.remote_control import RemoteControl
from octavo.engine.replay import Replays
from octavo.engine.supervisor import Supervisor
from octavo.errors import (
    ConfigError,
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    RequestFailedError,
)
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.frontend import Frontend
from octavo.inputs.gate import Gate
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.meter import RequestMeter
from octavo.outputs.pooling import Pooled, PoolingOutputs, checked
from octavo.outputs.processor import OutputProcessor, error_of
from octavo.outputs.request_log import RequestLog
from octavo.outputs.stream import OutputStream, TextTaker
from octavo.records import (
    EngineInfo,
    EngineOutput,
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
from octavo.records.caller import CALLER
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.tracing import Tracer
from octavo.tokenization import Tokenizer

logger = logging.getLogger(__name__)

_LONG_TEXT = 4096
_LONG_LISTS = 1 << 13


class AsyncLLM(RemoteControl):
    """A model served to many callers of one event loop.

    The engine runs in a process of its own. If that dies it is started again, and requests in flight go on where
    they were: callers see a pause.

    Args:
        settings: the engine's settings.
        chat_template: a chat template, or a file with one, instead of the model's own.
        address: where to listen for an engine that somebody else keeps alive; by default this object keeps its own.
        index: place among the frontends of that engine; part of the metrics' labels.
        served_name: what metrics and traces call the model; by default what the settings call it.
    """

    def __init__(
        self,
        settings: EngineConfig,
        *,
        chat_template: str | None = None,
        address: str | None = None,
        index: int = 0,
        served_name: str | None = None,
    ) -> None:
        if any(not isinstance(spec, str) for spec in settings.model.logits_processors or []):
            raise ConfigError(
                "The engine runs in another process: give logits_processors by name, as 'package.module:Class'."
            )
        self.settings = settings
        self.stats = EngineStats()
        self.model_name = settings.model.model
        self.index = index
        self._served_name = served_name or self.model_name
        self._chat_template = chat_template
        self._address = address
        self._folder: Path | None = None
        self._client: EngineClient | None = None
        self._supervisor: Supervisor | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._frontend: Frontend | None = None
        self._inputs: InputProcessor | None = None
        self._metrics: Metrics | None = None
        self._meter: RequestMeter | None = None
        self._info: EngineInfo | None = None
        self._outputs = OutputProcessor(None)
        self._streams: dict[str, OutputStream] = {}
        self._pooling = PoolingOutputs()
        self._vectors: set[asyncio.Future[Pooled]] = set()
        self._numbers = itertools.count(1)
        self._replays = Replays()
        self._started = asyncio.Event()
        self._error: EngineDeadError | ConfigError | None = None
        self._request_log = RequestLog(settings.logging)
        self._tracer: Tracer | None = None
        self._gate: Gate | None = None
        self._last_progress = 0.0
        if settings.logging.otlp_traces_endpoint is not None:
            self._tracer = Tracer(settings.logging.otlp_traces_endpoint)

    @classmethod
    def from_engine_args(cls, **settings: object) -> "AsyncLLM":
        """Build from flat keyword arguments, named like the settings."""
        return cls(EngineConfig.from_kwargs(**settings))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None if it was told to do without."""
        return None if self._frontend is None else self._frontend.tokenizer

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
        """The same for requests that are answered with vectors."""
        return PoolingProcessor(self.info, self.tokenizer)

    @property
    def info(self) -> EngineInfo:
        """The engine's description."""
        assert self._info is not None, "start() comes first"
        return self._info

    @property
    def metrics(self) -> Metrics:
        """What Prometheus may scrape."""
        assert self._metrics is not None, "start() comes first"
        return self._metrics

    @property
    def is_healthy(self) -> bool:
        """Whether the engine is there and gets on; False while it is starting, also again."""
        if self._error is not None or self._client is None or not self._client.is_connected:
            return False
        return self.fault is None and not self.is_stuck

    @property
    def fault(self) -> str | None:
        """Why the engine does nothing until its owner acts, in a sentence; None if nothing of that kind is known."""
        return self.stats.fault or None

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has work, but no step ended for longer than ``step_timeout``."""
        stats = self.stats
        is_busy = self._has_unfinished or stats.num_running or stats.num_waiting
        timeout = self.settings.scheduler.step_timeout
        return bool(is_busy) and not stats.is_paused and time.monotonic() - self._last_progress > timeout

    @property
    def _has_unfinished(self) -> bool:
        """Whether the engine owes this frontend anything; streams may be read for longer than that."""
        return bool(self._outputs.num_unfinished or len(self._pooling))

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self._streams) + len(self._pooling)

    async def start(self) -> None:
        """Start the engine and wait until it is loaded.

        Raises:
            OctavoError: the model or a setting is wrong.
            EngineDeadError: the engine did not start.
        """
        address = self._address
        if address is None:
            self._folder = Path(tempfile.mkdtemp(prefix="octavo-"))
            address = f"ipc://{self._folder}/engine.sock"
        self._client = EngineClient(
            address,
            on_ready=self._handle_ready,
            on_batch=self._handle_batch,
            on_failed=self._handle_failure,
            on_lost=partial(self._fail_all, RequestFailedError("What the engine said could not be read.")),
        )
        self._client.start()
        if self._address is None:
            self._supervisor = Supervisor(self.settings, [address])
            self._supervision = asyncio.create_task(self._supervise(self._supervisor))
        try:
            # The engine process loads weights meanwhile.
            self._frontend = await asyncio.to_thread(Frontend.load, self.settings, self._chat_template)
            self._outputs = OutputProcessor(self._frontend.tokenizer, has_late_logprobs=True)
            await self._started.wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            await self.shutdown()
            raise
        self._inputs = self._frontend.input_processor(self.info)
        self._metrics = Metrics(self._served_name, self.info.max_model_len, str(self.index))
        self._metrics.set_cache_info(self.info)
        self._meter = RequestMeter(self._metrics, self._tracer, self._served_name)
        limits = self.settings.scheduler
        self._gate = Gate(self.info.max_num_seqs, limits.max_num_waiting, limits.max_num_waiting_tokens)

    async def wait_until_dead(self) -> None:
        """Return when the engine is gone for good."""
        if self._supervision is None:
            await asyncio.Event().wait()  # somebody else looks after the engine, and ends this process if need be
        else:
            await asyncio.wait([self._supervision])

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
                those that it takes are in no output, and nobody is woken for them. See :meth:`OutputStream.relay`.

        Raises:
            InvalidRequestError: the request is wrong; raised before the first output.
            QueueFullError: too many requests wait already.
            DeadlineExceededError: the caller's deadline came first.
            RequestFailedError: the request failed in the engine.
            EngineDeadError: the engine is gone for good.
        """
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
        if self._outputs.has(request_id):
            raise InvalidRequestError(f"The request id {request_id!r} is already in use.", "request_id")
        # The log sees outputs on the way to the caller.
        stream = OutputStream(
            is_delta=prepared.params.output_kind is RequestOutputKind.DELTA,
            take=None if self._request_log.is_on else take_text,
        )
        self._number(prepared)
        begun = self._begin([prepared], stream.fail)
        self._outputs.add(prepared, None if take_text is None else stream.relay)
        self._streams[request_id] = stream
        finished = False
        reasons: list[str | None] = []
        try:
            assert self._client is not None
            if self._client.is_connected:
                self._replays.enter(prepared.children)
            await self._client.add(prepared.children)
            while not finished:
                output = await stream.get()
                finished = output.finished
                if finished:
                    reasons = [completion.finish_reason for completion in output.outputs]
                if self._request_log.is_on:
                    self._request_log.take(output, prepared.params.output_kind)
                error = error_of(output)
                if error is not None:
                    raise error
                yield output
        finally:
            self._end(begun, reasons)
            self._streams.pop(request_id, None)
            if not finished:
                await self._abort_in_engine(request_id)
            self._send_soon(self._replays.forget([child.request_id for child in prepared.children]))

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
        assert self._client is not None and self._meter is not None
        requests = [request.children[0] for request in prepared]
        request_ids = [request.request_id for request in prepared]
        taken = next((name for name in request_ids if self._pooling.has(name) or self._outputs.has(name)), None)
        if taken is not None:
            raise InvalidRequestError(f"The request id {taken!r} is already in use.", "request_id")
        futures = [asyncio.get_running_loop().create_future() for _ in prepared]
        begun = self._begin(prepared, partial(_fail_all, futures))
        self._vectors.update(futures)
        for request, future in zip(prepared, futures, strict=True):
            self._pooling.add(request, partial(_settle, future))
        try:
            if self._client.is_connected:
                self._replays.enter(requests)
            await self._client.add(requests)
            return [checked(await future) for future in futures]
        finally:
            self._end(begun, [])
            self._vectors.difference_update(futures)
            for future in futures:
                # One error ends the request; the same of others is not to be reported as forgotten.
                if future.done() and not future.cancelled():
                    future.exception()
            unfinished = self._pooling.abort(request_ids)
            self._meter.end(unfinished, "abort")
            if unfinished and self._client is not None:
                await self._client.abort(unfinished)
            self._send_soon(self._replays.forget(request_ids))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests: the last output of each has what there is of it, with the finish reason ``abort``."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            last = self._outputs.abort_output(name)
            if last is not None:
                self._streams[name].put(last)
                await self._abort_in_engine(name)

    async def call_engine(self, name: str, **arguments: Any) -> Any:
        """Run one of the engine's control functions; see :class:`RemoteControl`."""
        if self._client is None:
            raise self._error or EngineDeadError("The engine is not started.")
        return await self._client.call(name, **arguments)

    async def shutdown(self) -> None:
        """End requests, the engine process and all that was set up; may be called more than once."""
        self._die(EngineDeadError("The engine is shut down."))
        # Taken at once: nothing is ended twice if two callers shut down at the same time.
        supervisor, supervision, client, folder = self._supervisor, self._supervision, self._client, self._folder
        self._supervisor = self._supervision = self._client = self._folder = None
        if supervisor is not None:
            await supervisor.stop()
        if supervision is not None:
            supervision.cancel()
            await asyncio.gather(supervision, return_exceptions=True)
        if client is not None:
            await client.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            await asyncio.to_thread(tracer.shutdown)

    def _check_admission(self, num_tokens: int = 0) -> None:
        if self._error is not None:
            raise self._error
        assert self._gate is not None, "start() comes first"
        try:
            self._gate.check(CALLER.get().client, num_tokens)
        except QueueFullError as error:
            self.metrics.record_rejection(error.reason)
            raise

    def _number(self, prepared: PreparedRequest) -> None:
        """Tell a request from earlier ones of its name: what the engine said of an aborted one may be on its way."""
        suffix = f"#{next(self._numbers)}"
        for child in prepared.children:
            child.request_id += suffix
            if child.leader_id is not None:
                child.leader_id += suffix

    def _begin(self, prepared: Sequence[PreparedRequest], fail: Callable[[Exception], None]) -> "_Begun":
        """Note requests that were taken in, and end them at their caller's deadline; :meth:`_end` comes after it.

        Raises:
            DeadlineExceededError: it has passed.
        """
        assert self._meter is not None and self._gate is not None
        caller, timer = CALLER.get(), None
        if caller.deadline is not None:
            seconds = caller.deadline - time.monotonic()
            error = DeadlineExceededError("The request took longer than its deadline allows.")
            if seconds <= 0:
                raise error
            timer = asyncio.get_running_loop().call_later(seconds, fail, error)
        if not self._has_unfinished:
            self._last_progress = time.monotonic()
        for request in prepared:
            for child in request.children:
                child.client = caller.client
            self._gate.enter(request.children[0].request_id, caller.client, len(request.prompt_token_ids))
            self._meter.begin(request, caller.trace_headers)
            if self._request_log.is_on:
                self._request_log.begin(request)
        return _Begun(prepared, timer)

    def _end(self, begun: "_Begun", reasons: Sequence[str | None]) -> None:
        assert self._gate is not None
        if begun.timer is not None:
            begun.timer.cancel()
        for request in begun.prepared:
            self._gate.leave(request.children[0].request_id)
            if self._request_log.is_on:
                self._request_log.end(request.request_id, reasons)

    async def _abort_in_engine(self, request_id: str) -> None:
        engine_ids = self._outputs.abort(request_id)
        if self._meter is not None:
            self._meter.end(engine_ids, "abort")
        if engine_ids and self._client is not None:
            await self._client.abort(engine_ids)

    async def _supervise(self, supervisor: Supervisor) -> None:
        await supervisor.run()
        self._die(EngineDeadError("The engine stopped and does not come back; see the log."))

    def _die(self, error: EngineDeadError | ConfigError) -> None:
        if self._error is None:
            self._error = error
        self._fail_all(self._error)
        self._started.set()

    def _fail_all(self, error: OctavoError) -> None:
        for stream in self._streams.values():
            stream.fail(error)
        _fail_all(self._vectors, error)

    def _handle_ready(self, info: EngineInfo, stats: EngineStats) -> list[EngineRequest]:
        self._info, self.stats = info, stats
        self._last_progress = time.monotonic()
        self._started.set()
        requests, guilty = self._replays.resume(self._outputs.replays() + self._pooling.replays())
        error = "The engine died each time that it worked on this request."
        failures = [EngineOutput(request_id, finish_reason="error", error=error) for request_id in guilty]
        self._handle_batch(StepOutputs(others=failures), self.stats)
        return requests

    def _handle_failure(self, failed: Failed) -> None:
        if failed.is_final:
            self._die(ConfigError(failed.error) if failed.is_setting else EngineDeadError(failed.error))
        else:
            logger.error("%s", failed.error)

    def _handle_batch(self, outputs: StepOutputs, stats: EngineStats) -> None:
        if stats.num_steps != self.stats.num_steps or stats.is_paused or stats.only_awaits_grammars:
            self._last_progress = time.monotonic()
        self.stats = stats
        if self._metrics is not None and self._meter is not None:
            self._metrics.record_stats(stats)
            self._meter.observe(outputs)
        if not outputs:
            return
        if self._gate is not None:
            for news in outputs.others:
                self._gate.begin(news.request_id)
        self._send_soon(self._replays.take(outputs))
        self._pooling.process(outputs)
        processed = self._outputs.process(outputs)
        for output in processed.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and not stream.put(output):
                _run_soon(self._abort_in_engine(output.request_id))
        if processed.aborts and self._client is not None and self._meter is not None:
            self._meter.end(processed.aborts, "stop")
            _run_soon(self._client.abort(processed.aborts))

    def _send_soon(self, requests: list[EngineRequest]) -> None:
        if requests and self._client is not None:
            _run_soon(self._client.add(requests))


@dataclass(frozen=True, slots=True)
class _Begun:
    """Requests that were taken in together, and what ends them at their deadline."""

    prepared: Sequence[PreparedRequest]
    timer: asyncio.TimerHandle | None


_background: set[asyncio.Task[None]] = set()


def _is_long(prompt: PromptType) -> bool:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return isinstance(text, str) and len(text) > _LONG_TEXT


def _has_long_lists(params: SamplingParams | None) -> bool:
    if params is None:
        return False
    lists = (params.logit_bias, params.allowed_token_ids, params.stop_token_ids, params.bad_words)
    return sum(len(entries) for entries in lists if isinstance(entries, Sized)) > _LONG_LISTS


def _settle(future: "asyncio.Future[Pooled]", output: Pooled) -> None:
    """Hand an answer over, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(output)


def _fail_all(futures: Iterable["asyncio.Future[Pooled]"], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _run_soon(work: Coroutine[None, None, None]) -> None:
    """Start a coroutine and keep it alive until it is done."""
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
