"""Where steps are carried out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.execution.results import HeldStep, PendingStep
from octavo.execution.pooling_runner import PoolingRunner, pooling_runner
from octavo.execution.runner import ModelRunner
from octavo.hub import ModelSource
from octavo.hub.model_config import ModelConfig
from octavo.kernels import attention_backend, load_kernels
from octavo.layers.build import Build
from octavo.models.base import CausalLM
from octavo.models.loading import LoadReport, load_weights
from octavo.models.pooled import PooledModel
from octavo.models.registry import build_model, build_pooled
from octavo.platforms import Platform
from octavo.quantization.scheme import PlainScheme
from octavo.records import Plan, Step
from octavo.sampling.processors import load_processors
from octavo.telemetry.phases import PhaseTimer


class Executor(ABC):
    """Carries out steps, in the order in which they are submitted."""

    @abstractmethod
    def submit(self, step: Step) -> PendingStep | HeldStep:
        """Start a step; its results are asked for later. One with ``masked_rows`` is held until its masks are there."""

    @abstractmethod
    def shutdown(self) -> None:
        """Give memory and processes back."""


class InProcessExecutor(Executor):
    """One device, in the caller's process: loads the model at once, runs steps after :meth:`start`.

    Attributes:
        load_report: bytes and seconds that loading took.
    """

    def __init__(
        self,
        settings: EngineConfig,
        source: ModelSource,
        config: ModelConfig,
        plan: Plan,
        platform: Platform,
        phases: PhaseTimer,
    ) -> None:
        # Twice: while layers rearrange their weights, a copy lies beside the original.
        platform.prepare(settings.device.num_threads, 2 * plan.memory_of("weights"))
        self._settings = settings
        self._config = config
        self._device = platform.device
        self._phases = phases
        self._runner: ModelRunner | PoolingRunner | None = None
        load_kernels(self._device)
        dtype = getattr(torch, plan.dtype)
        with _out_of_memory_in_words("the weights were loaded"):
            self._loaded: CausalLM | PooledModel | None
            self._loaded, self.load_report = _load(settings, source, config, plan, dtype, self._device, phases)

    def start(self, plan: Plan) -> None:
        """Make the cache and everything else that steps need, and run the largest step.

        Args:
            plan: as at construction, but with the cache that fits beside the loaded model.

        Raises:
            ConfigError: the device's memory does not do.
        """
        with _out_of_memory_in_words("the engine made its cache and tried its largest step"):
            self._start(plan)

    def _start(self, plan: Plan) -> None:
        device, deterministic = self._device, self._settings.device.deterministic
        if isinstance(self._loaded, PooledModel):
            pooled, self._loaded = self._loaded, None
            self._runner = pooling_runner(pooled, self._config, plan, device, deterministic=deterministic)
            return
        processors = load_processors(self._settings.model.logits_processors or [], self._settings, device)
        backend = attention_backend(device, plan.max_num_seqs, plan.max_model_len, deterministic=deterministic)
        # From here on the runner alone holds the model, so that its memory goes when the runner goes.
        model, self._loaded = self._loaded, None
        assert model is not None, "an executor starts once"
        arguments = (model, self._config, plan, getattr(torch, plan.dtype), device, backend, processors)
        if device.type == "cpu":
            self._runner = ModelRunner(*arguments)
            return
        from octavo.execution.device_runner import DeviceRunner

        self._runner = runner = DeviceRunner(*arguments)
        with self._phases.phase("kernels"):
            runner.warm_up()
        if not self._settings.model.enforce_eager:
            with self._phases.phase("graphs") as phase:
                phase.words = f"{runner.capture()} step sizes"

    def submit(self, step: Step) -> PendingStep | HeldStep:
        assert self._runner is not None, "the executor is not started, or shut down"
        return self._runner.execute(step)

    def shutdown(self) -> None:
        self._loaded = self._runner = None


@contextmanager
def _out_of_memory_in_words(what: str) -> Iterator[None]:
    """Say what a person can do.

    Args:
        what: what happened, behind "while".
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"The device's memory ran out while {what}. Lower gpu_memory_utilization, if other processes use the "
            "device; lower max_num_batched_tokens, max_num_seqs or max_model_len; or take a smaller or quantised "
            "model, or a larger device."
        ) from error


def _load(
    settings: EngineConfig,
    source: ModelSource,
    config: ModelConfig,
    plan: Plan,
    dtype: torch.dtype,
    device: torch.device,
    phases: PhaseTimer,
) -> tuple[CausalLM | PooledModel, LoadReport]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            scheme = PlainScheme(deterministic=settings.device.deterministic)
            build = build_model if config.pooling is None else build_pooled
            model = build(config, Build(scheme), plan.max_model_len)
    finally:
        torch.set_default_dtype(before)
    report = load_weights(
        model,
        source,
        config,
        load_format=settings.load.load_format,
        seed=settings.model.seed,
        show_progress=settings.load.use_tqdm_on_load,
        phases=phases,
    )
    return model, report
