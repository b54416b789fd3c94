"""Executors: own the weights, the cache and the runner of a device, and run steps in order.

The engine core submits a :class:`Step` and later asks for its :class:`StepResult`. Sleep, wake-up and weight updates
are here, too. Read on in ``runner.py``.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from octavo.config import EngineConfig
from octavo.config.vllm_config import VllmConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.execution.build import Runner, build_runner
from octavo.execution.offload import HostWeights, checksums
from octavo.execution.results import HeldStep, PendingStep
from octavo.hub import ModelSource
from octavo.hub.model_config import ModelConfig
from octavo.kernels import bind_kernels
from octavo.layers.build import Build
from octavo.models.base import CausalLM
from octavo.models.loading import check_weights, load_weights
from octavo.models.pooled import PooledModel
from octavo.models.registry import build_model, build_pooled
from octavo.platforms import Platform, runtime_of
from octavo.quantization.resolve import resolve_quantization
from octavo.records import Plan, Step
from octavo.sampling.processors import LogitsProcessor, load_processors
from octavo.telemetry.phases import PhaseTimer


class Executor(ABC):
    """Runs steps in the order in which they are submitted."""

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether the weights are loaded, on the device or in host memory."""

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model, on the device.

        Raises:
            InvalidRequestError: its weights are not on the device.
        """

    @abstractmethod
    def submit(self, step: Step) -> PendingStep | HeldStep:
        """Start a step and return a handle to its result. With ``masked_rows``, it is held until it gets its masks."""

    @abstractmethod
    def sleep(self, level: int) -> None:
        """Release the memory of the cache and, by level, of the weights; no step may be in flight.

        Args:
            level: 0 keeps the weights where they are, 1 moves them to host memory, 2 drops them.
        """

    @abstractmethod
    def wake_weights(self) -> None:
        """Restore the weights if they were released.

        Raises:
            OctavoError: they cannot be read.
        """

    @abstractmethod
    def wake_cache(self) -> None:
        """Allocate an empty cache and everything else that steps need, if released; the weights must be loaded."""

    @abstractmethod
    def check_weights(self, folder: Path | None) -> None:
        """Check that the folder has safetensors files with the model's tensor names and shapes.

        Raises:
            OctavoError: it has not.
        """

    @abstractmethod
    def load_weights(self, folder: Path | None) -> None:
        """Replace the weights; no step may be in flight, and the cache must be allocated again afterwards.

        Args:
            folder: a folder that passed :meth:`check_weights`; None reloads the model's own weights.

        Raises:
            OctavoError: the weights cannot be read. No weights are loaded then; :meth:`wake_weights` restores the old.
        """

    @abstractmethod
    def weight_checksums(self) -> dict[str, str]:
        """A checksum of each parameter."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release memory and processes."""


class InProcessExecutor(Executor):
    """One device, in the caller's process: loads the model when its weights wake, runs steps after :meth:`start`.

    Args:
        folder: updated weights to start with, if any.
    """

    def __init__(
        self,
        settings: EngineConfig,
        source: ModelSource,
        config: ModelConfig,
        plan: Plan,
        platform: Platform,
        phases: PhaseTimer,
        folder: Path | None = None,
    ) -> None:
        # Twice the weights: while layers rearrange them, a copy exists next to the original.
        platform.prepare(settings.device.num_threads, 2 * plan.memory_of("weights"))
        self._settings = settings
        self._first_source = source
        self._source = self._source_in(folder)
        self._config = config
        self._load_plan = plan
        self._plan: Plan | None = None
        self._platform = platform
        self._runtime = runtime_of(platform.device)
        self._phases = phases
        self._runner: Runner | None = None
        self._host_weights: HostWeights | None = None
        self._quantization = resolve_quantization(settings, config, has_float8=platform.has_float8())
        bind_kernels(platform)
        self._loaded: CausalLM | PooledModel | None = None

    @property
    def has_weights(self) -> bool:
        return self._loaded is not None

    def start(self, plan: Plan) -> None:
        """Allocate the cache and everything else that steps need, and run the largest step; deferred without weights.

        Args:
            plan: as at construction, but with the cache size that fits next to the loaded model.

        Raises:
            ConfigError: the device's memory is not sufficient.
        """
        self._plan = plan
        if not self.has_weights:
            return
        with _out_of_memory_in_words("the engine made its cache and tried its largest step"):
            self._start(plan)

    def _start(self, plan: Plan) -> None:
        model, settings = self._loaded, self._settings
        assert model is not None, "weights are there before steps run"
        is_pooling = isinstance(model, PooledModel)
        processors = [] if is_pooling else self._load_processors(plan)
        deterministic = settings.device.deterministic
        self._runner = runner = build_runner(
            model, self._config, plan, self._platform, processors, deterministic=deterministic
        )
        if not self._platform.runs_ahead:
            return
        with self._phases.phase("kernels"):
            runner.warm_up()
        if self._platform.captures_graphs and not (is_pooling or settings.model.enforce_eager):
            with self._phases.phase("graphs") as phase:
                num_graphs = runner.capture(show_progress=settings.load.use_tqdm_on_load)
                phase.words = f"{num_graphs} step sizes"

    def _load_processors(self, plan: Plan) -> list[LogitsProcessor]:
        vllm_config = VllmConfig.of(
            self._settings,
            max_model_len=plan.max_model_len,
            vocab_size=self._config.vocab_size,
            max_num_seqs=plan.max_num_seqs,
            block_size=plan.block_size,
            num_blocks=plan.num_blocks - 1,
            enable_prefix_caching=plan.enable_prefix_caching,
            pooling=None,
        )
        return load_processors(self._settings.model.logits_processors or [], vllm_config, self._platform.device)

    def submit(self, step: Step) -> PendingStep | HeldStep:
        assert self._runner is not None, "the executor is not started, or shut down"
        return self._runner.execute(step)

    def sleep(self, level: int) -> None:
        self._runner = None
        if level == 2:
            self._loaded = self._host_weights = None
        elif level == 1 and self._loaded is not None and self._host_weights is None and not self._runtime.is_host:
            self._host_weights = HostWeights(self._loaded)
        self._return_memory()

    def wake_weights(self) -> None:
        if self._host_weights is not None:
            self._host_weights.restore()
            self._host_weights = None
        elif self._loaded is None:
            self._loaded = self._load(self._source)

    def wake_cache(self) -> None:
        if self._runner is None:
            assert self._plan is not None, "start() comes first"
            self.start(self._plan)

    def check_weights(self, folder: Path | None) -> None:
        if folder is not None:
            check_weights(self._build(torch.device("meta")), self._source_in(folder), self._config)

    def load_weights(self, folder: Path | None) -> None:
        source = self._source_in(folder)
        self._runner = self._loaded = self._host_weights = None
        self._return_memory()
        self._loaded = self._load(source)
        self._source = source

    @property
    def model(self) -> CausalLM | PooledModel:
        if self._loaded is None or self._host_weights is not None:
            raise InvalidRequestError("The weights are not on the device; wake the engine first.")
        return self._loaded

    def weight_checksums(self) -> dict[str, str]:
        return checksums(self.model)

    def shutdown(self) -> None:
        self._loaded = self._runner = self._host_weights = None

    def _source_in(self, folder: Path | None) -> ModelSource:
        own = self._first_source
        return own if folder is None else ModelSource("folder", folder, own.name)

    def _is_updated(self, source: ModelSource) -> bool:
        return source.path != self._first_source.path

    def _return_memory(self) -> None:
        gc.collect()
        self._runtime.return_memory()

    def _build(self, device: torch.device) -> CausalLM | PooledModel:
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self._load_plan.dtype))
        try:
            with device:
                build = build_model if self._config.pooling is None else build_pooled
                return build(self._config, Build(self._quantization), self._load_plan.max_model_len)
        finally:
            torch.set_default_dtype(before)

    def _load(self, source: ModelSource) -> CausalLM | PooledModel:
        load = self._settings.load
        with _out_of_memory_in_words("the weights were loaded"):
            with self._phases.phase("model"):
                model = self._build(self._platform.device)
            load_weights(
                model,
                source,
                self._config,
                # Updated weights come from safetensors files even if the model started with dummy weights.
                load_format="safetensors" if self._is_updated(source) else load.load_format,
                seed=self._settings.model.seed,
                show_progress=load.use_tqdm_on_load,
                phases=self._phases,
            )
        return model


@contextmanager
def _out_of_memory_in_words(what: str) -> Iterator[None]:
    """Turn running out of device memory into an error that lists the remedies.

    Args:
        what: the activity, as a clause after "while".
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"The device's memory ran out while {what}. Lower gpu_memory_utilization, if other processes use the "
            "device; lower max_num_batched_tokens, max_num_seqs or max_model_len; or take a smaller or quantised "
            "model, or a larger device."
        ) from error
