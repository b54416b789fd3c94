"""The worker: model, runner and cache of one device, or of a device's part of a model.

An executor (``executor.py``) calls it, in this process or from another one; so arguments and results of its public
methods are plain data. Functions of ``collective_rpc`` and ``apply_model`` get it as their argument and find vLLM's
attributes. Read on in ``runner.py``.
"""

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from octavo.config import EngineConfig
from octavo.config.vllm_config import VllmConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.execution.build import Runner, build_runner
from octavo.execution.offload import HostWeights, checksums
from octavo.execution.results import HeldStep, PendingStep
from octavo.hub import ModelSource
from octavo.hub.model_config import ModelConfig
from octavo.kernels import bind_kernels, compile_together
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.moe import Router
from octavo.models.base import CausalLM
from octavo.models.loading import check_weights, load_weights
from octavo.models.pooled import PooledModel
from octavo.models.registry import build_model, build_pooled
from octavo.parallel import ProcessGroup, TensorParallel, connect
from octavo.platforms import DeviceMemory, Platform, runtime_of
from octavo.quantization.cache_format import resolve_cache_format
from octavo.quantization.resolve import resolve_quantization
from octavo.records import Plan, Step, StepResult
from octavo.sampling.processors import LogitsProcessor, load_processors
from octavo.telemetry.phases import PhaseTimer


class Worker:
    """Loads the model when its weights wake, runs steps after :meth:`start`.

    Attributes:
        rank, local_rank: its number among the workers, and among those of its machine.

    Args:
        folder: updated weights to start with; None for the model's own.
        rank, size: the part of the model that it has.
        owns_process: nothing but the engine runs in this process.
    """

    def __init__(
        self,
        settings: EngineConfig,
        source: ModelSource,
        config: ModelConfig,
        plan: Plan,
        platform: Platform,
        phases: PhaseTimer,
        folder: str | None = None,
        *,
        rank: int = 0,
        size: int = 1,
        owns_process: bool = False,
    ) -> None:
        self.rank = self.local_rank = rank
        # Twice the weights: while layers rearrange them, a copy exists next to the original.
        self.host_threads = platform.prepare(
            settings.device, 2 * plan.memory_of("weights"), rank=rank, size=size, owns_process=owns_process
        )
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
        self._quantization = resolve_quantization(
            settings,
            config,
            has_float8=platform.has_float8(),
            has_blocks=platform.has_blocks(),
            has_groups=platform.has_groups(),
        )
        self._cache_format = resolve_cache_format(
            settings, config, plan.dtype, has_float8_cache=platform.has_float8_cache()
        )
        self._tensor_parallel = TensorParallel(rank, size)
        bind_kernels(platform, settings.device.cache_root)
        self._loaded: CausalLM | PooledModel | None = None
        self._is_filled = False
        self._steps: dict[int, PendingStep | HeldStep] = {}

    def connect(self, store: dist.Store, *, is_local: bool) -> ProcessGroup:
        """Join the other workers' group; before the weights are loaded.

        Args:
            store: where the workers find each other.
            is_local: all of them are on this machine.
        """
        rank, size = self._tensor_parallel.rank, self._tensor_parallel.size
        group = connect(store, rank, size, self._platform.collectives, is_local=is_local)
        # Communicators are made with the first operation; their memory must be there when the cache is sized.
        group.all_reduce(torch.zeros(1, device=self._platform.device))
        self._runtime.synchronize()
        self._tensor_parallel = TensorParallel(rank, size, group)
        return group

    def has_weights(self) -> bool:
        """Whether the weights are loaded, on the device or in host memory."""
        return self._is_filled

    def memory_use(self) -> tuple[int, int, int]:
        """Bytes of device memory that this process uses (0 if unknown), and the device's total and free bytes."""
        memory: DeviceMemory = self._platform.memory()
        return self._platform.used_by_process(), memory.total, memory.available

    def start(self, plan: Plan) -> None:
        """Allocate the cache and everything else that steps need, and run the largest step; deferred without weights.

        Args:
            plan: as at construction, but with the cache size that fits next to the loaded model.

        Raises:
            ConfigError: the device's memory is not sufficient.
        """
        self._plan = plan
        if not self._is_filled:
            return
        with _out_of_memory_explained("the engine made its cache and tried its largest step"):
            self._start(plan)

    def _start(self, plan: Plan) -> None:
        model, settings = self._loaded, self._settings
        assert model is not None, "weights are there before steps run"
        is_pooling = isinstance(model, PooledModel)
        processors = [] if is_pooling else self._load_processors(plan)
        deterministic = settings.device.deterministic
        self._runner = runner = build_runner(
            model,
            self._config,
            plan,
            self._platform,
            processors,
            deterministic=deterministic,
            enforce_eager=settings.model.enforce_eager,
        )
        if not self._platform.runs_ahead:
            return
        # The largest steps come last, as their kernels take longest to compile.
        with compile_together(self._platform.device) as compile_only:
            with self._phases.phase("kernels"):
                runner.rehearse(compile_only)
            if self._platform.captures_graphs and not (is_pooling or settings.model.enforce_eager):
                with self._phases.phase("graphs") as phase:
                    num_graphs = runner.capture(show_progress=self._shows_progress)
                    phase.note = f"{num_graphs} step sizes"
            with self._phases.phase("first steps"):
                runner.warm_up()

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

    def submit(self, step: Step) -> None:
        """See :meth:`octavo.execution.executor.Executor.submit`."""
        assert self._runner is not None, "the worker is not started, or shut down"
        self._steps[step.step_id] = self._runner.execute(step)

    def draw(self, step_id: int, masks: NDArray[Any]) -> None:
        """See :meth:`octavo.execution.executor.Executor.draw`."""
        held = self._steps[step_id]
        assert isinstance(held, HeldStep), "a step is held if it has masked rows"
        self._steps[step_id] = held.draw(masks)

    def collect(self, step_id: int) -> StepResult:
        """See :meth:`octavo.execution.executor.Executor.collect`."""
        pending = self._steps.pop(step_id)
        assert not isinstance(pending, HeldStep), "masks come before results"
        return pending.result()

    def drop(self, step_id: int) -> None:
        """Forget a step, whose results another worker reports."""
        del self._steps[step_id]

    def sleep(self, level: int) -> None:
        """See :meth:`octavo.execution.executor.Executor.sleep`."""
        self._runner = None
        self._steps.clear()
        if level == 2:
            self._loaded, self._host_weights, self._is_filled = None, None, False
        elif level == 1 and self._is_filled and self._host_weights is None and not self._runtime.is_host:
            assert self._loaded is not None
            self._host_weights = HostWeights(self._loaded)
        gc.collect()
        self._runtime.return_memory()

    def wake_weights(self) -> None:
        """See :meth:`octavo.execution.executor.Executor.wake_weights`."""
        self._restore()
        if not self._is_filled:
            self._fill(self._source)

    def wake_cache(self) -> None:
        """See :meth:`octavo.execution.executor.Executor.wake_cache`."""
        if self._runner is None:
            assert self._plan is not None, "start() comes first"
            self.start(self._plan)

    def check_weights(self, folder: str | None) -> None:
        """See :meth:`octavo.execution.executor.Executor.check_weights`."""
        if folder is not None:
            check_weights(self._build(torch.device("meta")), self._source_in(folder), self._config)

    def load_weights(self, folder: str | None) -> None:
        """See :meth:`octavo.execution.executor.Executor.load_weights`."""
        self._restore()
        self._is_filled = False
        source = self._source_in(folder)
        self._fill(source)
        self._source = source

    @property
    def model(self) -> CausalLM | PooledModel:
        """The model, or this worker's part of it.

        Raises:
            InvalidRequestError: its weights are not on the device.
        """
        if self._loaded is None or not self._is_filled or self._host_weights is not None:
            raise InvalidRequestError("The weights are not on the device; wake the engine first.")
        return self._loaded

    @property
    def model_runner(self) -> "Worker":
        """Itself: code written for vLLM looks for ``model_runner.model``."""
        return self

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def get_model(self) -> CausalLM | PooledModel:
        """The model; see :attr:`model`."""
        return self.model

    def apply_model(self, function: Any) -> Any:
        """The result of ``function`` applied to the model."""
        return function(self.model)

    def weight_checksums(self) -> dict[str, str]:
        """A checksum of each parameter."""
        return checksums(self.model)

    def call_function(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function, ``package.module:function``, with this worker and further arguments.

        Raises:
            InvalidRequestError: it failed, or its result is no plain data.
        """
        module, _, attribute = name.partition(":")
        try:
            value = getattr(importlib.import_module(module), attribute)(self, *args, **kwargs)
            msgspec.msgpack.encode(value)
        except Exception as error:
            # It must not end the engine.
            raise InvalidRequestError(f"{name} failed: {type(error).__name__}: {error}", "method") from error
        return value

    def shutdown(self) -> None:
        """Release the device's memory."""
        self._loaded = self._runner = self._host_weights = None
        self._is_filled = False
        self._steps.clear()

    def _source_in(self, folder: str | None) -> ModelSource:
        own = self._first_source
        return own if folder is None else ModelSource("folder", Path(folder), own.name)

    @property
    def _shows_progress(self) -> bool:
        return self._settings.load.use_tqdm_on_load and self.rank == 0

    def _restore(self) -> None:
        if self._host_weights is not None:
            self._host_weights.restore()
            self._host_weights = None

    def _build(self, device: torch.device) -> CausalLM | PooledModel:
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self._load_plan.dtype))
        try:
            with device, self._runtime.weight_memory():
                make = build_model if self._config.pooling is None else build_pooled
                build = Build(
                    self._quantization,
                    tensor_parallel=self._tensor_parallel,
                    uniform_routing=self._settings.model.uniform_routing,
                    cache=self._cache_format,
                )
                model = make(self._config, build, self._load_plan.max_model_len)
        finally:
            torch.set_default_dtype(before)
        for module in model.modules():
            if isinstance(module, Experts):
                module.is_plain = self._settings.model.moe_backend == "torch"
        if build.uniform_routing and not any(isinstance(module, Router) for module in model.modules()):
            raise ConfigError("uniform_routing is set, but the model has no experts.")
        return model

    def _fill(self, source: ModelSource) -> None:
        """Load weights into the model, in place if there is one; the runner and its captured steps stay valid."""
        load = self._settings.load
        with _out_of_memory_explained("the weights were loaded"):
            if self._loaded is None:
                with self._phases.phase("model"):
                    self._loaded = self._build(self._platform.device)
            load_weights(
                self._loaded,
                source,
                self._config,
                # Updated weights come from safetensors files even if the model started with dummy weights.
                load_format="safetensors" if source.path != self._first_source.path else load.load_format,
                seed=self._settings.model.seed,
                show_progress=self._shows_progress,
                phases=self._phases,
            )
        self._is_filled = True


@contextmanager
def _out_of_memory_explained(what: str) -> Iterator[None]:
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
