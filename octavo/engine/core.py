"""The engine core: requests come in, :meth:`EngineCore.step` runs a step, tokens go out.

It joins the scheduler (``octavo/scheduling``), the executor (``octavo/execution``) and the requests that wait for
grammars (``constraints.py``).
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import msgspec

from octavo.cache.kv_events import KVEventRecorder, start_kv_events
from octavo.config import EngineConfig
from octavo.engine.constraints import Constraints, refusal, rules_without_grammar
from octavo.engine.state import AS_CONFIGURED, EngineState, UpdatedWeights
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedModelError, WeightsError
from octavo.execution.select import make_executor
from octavo.hub import find_model
from octavo.kernels import expect_to_compile, import_kernels
from octavo.planning import adapt_settings, fit_cache, make_plan, resize_cache
from octavo.platforms import DeviceMemory, begin_device, platform_type, select_platform
from octavo.records import EngineInfo, EngineOutput, EngineRequest, EngineStats, Plan, Step, StepOutputs
from octavo.sampling.token_masks import fill_masks
from octavo.scheduling import Scheduler
from octavo.telemetry.phases import PhaseTimer

logger = logging.getLogger(__name__)

WEIGHTS_ARE_LOST = "The weights of the last update are gone from their folder, or have changed; update them again."

_GRAMMAR_POLL_SECONDS = 0.005


class EngineCore:
    """Scheduler and executor in one loop. Works on token ids, not text; not thread-safe.

    Attributes:
        is_paused: no step is started.
        sleep_level: released memory: 0 none, 1 the cache's, with weights in host memory, 2 the weights', too.
        weights: source of the last weight update; None for the model's own.
        fault: an error message if no step may start before an owner acts; else empty.

    Args:
        phases: times the startup; may contain earlier phases.
        measures_limit: determine ``EngineInfo.decode_limit``, which on a CPU needs a measurement.
        owns_process: nothing but the engine runs in this process.
        state: state to start in: a sleeping engine loads nothing; if updated weights are lost, it has no weights.

    Raises:
        OctavoError: the model or a setting is wrong.
    """

    def __init__(
        self,
        settings: EngineConfig,
        phases: PhaseTimer | None = None,
        *,
        measures_limit: bool = False,
        state: EngineState = AS_CONFIGURED,
        owns_process: bool = False,
    ) -> None:
        phases = phases or PhaseTimer(logger)
        with phases.phase("configuration"):
            begin_device(settings.device.device)
            source, config = find_model(settings)
            expected = platform_type(settings.device.device)
            if not state.sleep_level:
                expect_to_compile(expected, settings.device.cache_root)
            if settings.device.tensor_parallel_size == 1:
                import_kernels(expected)
            platform = select_platform(settings.device.device, 0 if settings.device.tensor_parallel_size > 1 else None)
            settings = adapt_settings(settings, platform)
            bandwidth = platform.read_bandwidth() if measures_limit else 0.0
            plan = make_plan(settings, config, platform, bandwidth, is_for_later=state.sleep_level > 0)
        for decision in plan.decisions:
            logger.debug("%s = %s: %s", decision.name, decision.value, decision.reason)
        self.weights = state.weights
        self.sleep_level, self.fault = state.sleep_level, ""
        folder = None if self.weights is None else self.weights.folder
        executor = self.executor = make_executor(
            settings, source, config, plan, platform, phases, folder, owns_process=owns_process
        )
        if not self.sleep_level:
            logger.info("Loading %s on %s", source.name, platform.describe())
            self._wake_weights()
        with phases.phase("memory") as phase:
            self.plan: Plan
            if executor.has_weights:
                self.plan = self._fit_cache(plan, settings)
            else:
                self.plan = resize_cache(plan, settings, state.num_blocks)
            phase.note = f"cache for {self.plan.cache_tokens} tokens"
        executor.start(self.plan)
        self._events = _event_recorder(settings, self.plan)
        self.scheduler = Scheduler(self.plan, () if self._events is None else (self._events,))
        self._pending: deque[int] = deque()  # step ids
        self._held: Step | None = None
        self._is_interrupted = False
        self.is_paused = state.is_paused or self.sleep_level > 0 or bool(self.fault)
        self._constraints = Constraints(settings, source, config.vocab_size)
        self._mask_width = -(-config.vocab_size // 32)
        self.info = EngineInfo(
            max_model_len=self.plan.max_model_len,
            vocab_size=config.vocab_size,
            num_blocks=self.plan.num_blocks - 1,
            block_size=self.plan.block_size,
            max_num_seqs=self.plan.max_num_seqs,
            supports_prefix_caching=self.plan.enable_prefix_caching,
            pooling=config.pooling,
            decisions=[asdict(decision) for decision in self.plan.decisions],
            device=platform.describe(),
            decode_limit=self.plan.decode_limit,
            embeds_size=config.hidden_size if settings.model.enable_prompt_embeds and not config.is_encoder else 0,
            cache_tokens=self.plan.cache_tokens,
            phases=list(phases.phases),
            kv_event_source={} if self._events is None else msgspec.structs.asdict(self._events.config),
        )
        phases.ready(f"{source.name} on {platform.describe()}, sequences up to {self.plan.max_model_len} tokens")

    def _fit_cache(self, plan: Plan, settings: EngineConfig) -> Plan:
        """The plan with a cache that fits on every device."""
        uses = self.executor.call_all("memory_use")
        plans = [fit_cache(plan, settings, held, DeviceMemory(total, free)) for held, total, free in uses]
        return min(plans, key=lambda fitted: fitted.num_blocks)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: it can never run.
        """
        if (request.pooling is None) != (self.info.pooling is None):
            raise InvalidRequestError("The model does not support requests of this kind, generation or pooling.")
        if request.request_id in self._constraints or request.request_id in self.scheduler.requests:
            raise InvalidRequestError(f"The request id {request.request_id!r} is already in use.", "request_id")
        if request.params.structured_outputs is not None:
            self._constraints.begin(request)
        else:
            self.scheduler.add_request(request, rules_without_grammar(request))

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests at once; unknown ids are ignored."""
        request_ids = list(request_ids)
        outputs = self._constraints.abort(request_ids) + self.scheduler.abort(request_ids)
        self._send_events()
        return outputs

    def step(self) -> StepOutputs:
        """Run one step and return its outputs; empty if nothing can run.

        Keeps up to ``num_steps_ahead`` further steps in flight. After an exception, Ctrl-C included, requests that are
        not aborted are recomputed.
        """
        if self._is_interrupted:
            self._forget_steps()
        try:
            return self._step()
        except BaseException:
            self._is_interrupted = True
            raise

    def _step(self) -> StepOutputs:
        refusals = self._take_bound() if self._constraints else []
        while not self.is_paused and len(self._pending) <= self.plan.num_steps_ahead and self._held is None:
            step = self.scheduler.schedule()
            if step is None:
                break
            self.executor.submit(step)
            if step.masked_rows is None:
                self._pending.append(step.step_id)
            else:
                self._held = step
        outputs = StepOutputs()
        if self._pending:
            outputs = self.scheduler.update(self.executor.collect(self._pending.popleft()))
        if self._held is not None and not self._pending:
            # The step's forward pass runs, and all tokens that its masks depend on are known.
            step, self._held = self._held, None
            self.executor.draw(step.step_id, fill_masks(self.scheduler.bound_rows(step), self._mask_width))
            self._pending.append(step.step_id)
        self._send_events()
        outputs.others += refusals
        if self._constraints and not outputs and self.is_quiet and not self._can_run:
            self._constraints.wait(_GRAMMAR_POLL_SECONDS)
        return outputs

    def _forget_steps(self) -> None:
        """Recompute all requests, since the progress of the last steps is unknown."""
        self._pending.clear()
        self._held = None
        self.scheduler.forget_steps()
        self.executor.sleep(0)
        self.executor.wake_cache()
        self._is_interrupted = False

    def _take_bound(self) -> list[EngineOutput]:
        """Queue requests whose grammars are compiled; returns outputs of those that can never run."""
        ready, failed = self._constraints.take_ready()
        for bound in ready:
            try:
                self.scheduler.add_request(bound.request, bound.rules)
            except InvalidRequestError as error:
                failed.append(refusal(bound.request.request_id, error))
        return failed

    def check_awake(self) -> None:
        """Check that the engine runs steps; otherwise a caller would wait forever.

        Raises:
            InvalidRequestError: the engine is paused, or sleeps.
        """
        if self.is_paused:
            raise InvalidRequestError("The engine is asleep; call wake_up() first.")

    @property
    def request_ids(self) -> list[str]:
        """Ids of all unfinished requests."""
        return [*self.grammars_awaited, *self.scheduler.requests]

    @property
    def grammars_awaited(self) -> set[str]:
        """Ids of requests that wait for their grammars."""
        return self._constraints.request_ids

    @property
    def has_work(self) -> bool:
        """Whether a step may do something."""
        return self._can_run or not self.is_quiet or bool(self._constraints)

    @property
    def _can_run(self) -> bool:
        return self.scheduler.has_unfinished and not self.is_paused

    @property
    def is_quiet(self) -> bool:
        """Whether no step is in flight."""
        return not self._pending and self._held is None

    @property
    def stats(self) -> EngineStats:
        """Current statistics."""
        stats = self.scheduler.current_stats()
        stats.num_awaiting_grammar = len(self._constraints)
        stats.num_waiting += stats.num_awaiting_grammar
        if self._events is not None:
            stats.num_dropped_event_batches = self._events.num_dropped
        stats.is_paused, stats.sleep_level, stats.fault = self.is_paused, self.sleep_level, self.fault
        return stats

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache; returns False, and does nothing, while requests run."""
        return self.scheduler.reset_prefix_cache()

    def sleep(self, level: int, *, keeps_weights: bool = False) -> None:
        """Release memory while paused and quiet; running requests are recomputed afterwards.

        Args:
            level: 1 moves weights to host memory, 2 drops them; the cache is released in either case.
            keeps_weights: with level 1, keep the weights on the device.
        """
        self.scheduler.preempt_all(device_is_new=True)
        self.executor.sleep(0 if keeps_weights else level)
        self.sleep_level = max(self.sleep_level, level)

    def wake_up(self, *, weights: bool = True, cache: bool = True) -> None:
        """Restore the weights, and then the cache.

        Raises:
            OctavoError: the weights cannot be read again.
        """
        if weights or cache:
            self._wake_weights()
        if cache:
            if not self.executor.has_weights:
                raise InvalidRequestError(self.fault)
            self.executor.wake_cache()
            self.sleep_level = 0

    def _wake_weights(self) -> None:
        """Restore the weights if they were released; sets ``fault`` if updated weights are no longer as they were."""
        try:
            if not self.executor.has_weights and self.weights is not None and not self.weights.are_there:
                raise WeightsError("their files are gone or have changed")
            self.executor.wake_weights()
        except (WeightsError, UnsupportedModelError) as error:
            if self.weights is None:
                raise
            logger.error("The weights of %s are lost until they are updated again: %s", self.weights.folder, error)
            self.fault = WEIGHTS_ARE_LOST
        else:
            self.fault = ""

    def load_weights(self, folder: Path | None) -> None:
        """Replace the weights while paused and quiet; if they cannot be read, the old ones stay.

        Args:
            folder: the weights' folder; None reloads the model's own.

        Raises:
            OctavoError: they do not fit the model, or cannot be read.
        """
        # Take the fingerprint before reading, so that files changed during the read are noticed later.
        weights = None if folder is None else UpdatedWeights.found_in(folder)
        path = None if folder is None else str(folder)
        self.executor.check_weights(path)
        self.scheduler.preempt_all(device_is_new=self.sleep_level > 0)
        try:
            self.executor.load_weights(path)
            self.weights, self.fault = weights, ""
        except OctavoError:
            self._wake_weights()
            raise
        finally:
            if not self.sleep_level and self.executor.has_weights:
                self.executor.wake_cache()

    def _send_events(self) -> None:
        if self._events is not None:
            self._events.flush()

    def shutdown(self) -> None:
        """Release the model's memory."""
        self._pending.clear()
        self._held = None
        self._constraints.close()
        if self._events is not None:
            self._events.close()
        self.executor.shutdown()


def _event_recorder(settings: EngineConfig, plan: Plan) -> KVEventRecorder | None:
    config = settings.logging.kv_events_config
    if config is None or not config.is_on:
        return None
    if not plan.enable_prefix_caching:
        logger.warning("kv_events_config is without effect: prefix caching is off, so no block is ever shared.")
        return None
    return start_kv_events(config, plan.groups)
