"""Makes the plan: resolves all settings once for the model and the device, each with a reason."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from octavo.config import CacheSettings, EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.kernels.support import kinds_that_depend_on_the_batch
from octavo.models.registry import check_supported
from octavo.parallel import TensorParallel
from octavo.planning.capacity import CACHE, HELD, cache_blocks, cache_tokens, fit_length
from octavo.planning.drafts import decode_length, resolve_drafts
from octavo.planning.groups import SNAPSHOT_INTERVAL, make_groups
from octavo.planning.memory import ModelSize, model_size
from octavo.planning.parts import StepLimits, memory_parts
from octavo.planning.routing import resolve_routing
from octavo.planning.share import check_room, left_for_cache
from octavo.planning.units import size
from octavo.platforms import DeviceMemory, Platform, compute_type, runtime_of
from octavo.quantization.cache_format import CacheFormat, resolve_cache_format
from octavo.quantization.config import QuantizationConfig, Unquantized
from octavo.quantization.resolve import resolve_quantization
from octavo.records import (
    CacheGroup,
    CacheSpec,
    ChunkedLocal,
    Decision,
    Full,
    Latent,
    MemoryPart,
    NgramDrafts,
    Plan,
    SlidingWindow,
    State,
    is_quantized,
    recent_tokens,
)

_CPU_CACHE_BYTES = 4 << 30
_BLOCK_SIZE = 16
_LEAST_BLOCKS = 2
_MAX_NUM_SEQS = 256
_HOST_TOKEN_BUDGET, _TOKEN_BUDGET = 1024, 8192
# A device of this size is so fast that only longer steps keep the share of host and launch overhead small, and it has
# the memory for larger steps and for the caches of more requests.
_LARGE_DEVICE = 70 << 30
_LARGE_MAX_NUM_SEQS = 1024
_LARGE_TOKEN_BUDGET = 16384
# What such a device computes in about a sixth of a second: no running request should wait longer for its next token.
_MIXED_STEP_OPERATIONS = 1.2e14
_ROUTED_COST = 1.5
"""Time of an expert's parameter relative to others, in steps of many tokens: their GEMMs are smaller."""
_LEAST_MIXED_TOKENS, _CHUNK_UNIT = 2048, 1024
# Batch sizes that get a graph of their exact size in interactivity mode.
_EXACT_GRAPHS = 32
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}


class _Planner:
    """Resolves settings one by one and records the reasons."""

    def __init__(self, settings: EngineConfig, config: ModelConfig, platform: Platform, memory: DeviceMemory) -> None:
        self.settings = settings
        self.config = config
        self.platform = platform
        self.memory = memory
        self.is_host = runtime_of(platform.device).is_host
        self.is_large = not self.is_host and self.memory.total >= _LARGE_DEVICE
        self.decisions: list[Decision] = []

    def decide(self, name: str, value: object, reason: str) -> None:
        """Record a decision."""
        self.decisions.append(Decision(name, str(value), reason))

    def dtype(self) -> str:
        """Data type of the computation."""
        wanted = self.settings.model.dtype
        fast = self.platform.fast_dtypes()
        if wanted != "auto":
            name = _DTYPE_ALIASES.get(wanted, wanted)
            self.decide("dtype", name, "as set")
            return name
        own = compute_type(self.config.dtype)
        if self.config.is_encoder and own is torch.float32 and self.is_host:
            self.decide("dtype", self.config.dtype, "the checkpoint's own type: embeddings should be exact")
            return self.config.dtype
        if own in fast and own is not torch.float32:
            self.decide("dtype", self.config.dtype, "the checkpoint's own type, and fast on this device")
            return self.config.dtype
        name = str(fast[0]).removeprefix("torch.")
        self.decide("dtype", name, f"the fastest type of this device; the checkpoint is {self.config.dtype}")
        return name

    def quantization(self) -> QuantizationConfig:
        """How weights are stored."""
        try:
            chosen = resolve_quantization(
                self.settings,
                self.config,
                has_float8=self.platform.has_float8(),
                has_blocks=self.platform.has_blocks(),
                has_groups=self.platform.has_groups(),
            )
        except UnsupportedModelError:
            return Unquantized()  # loading says why; the rest of the plan holds
        if chosen.description:
            source = "as set" if not self.config.quantization else "as the checkpoint is"
            is_native = self.platform.has_float8() and not self.settings.device.deterministic
            is_held = chosen.has_float8 and not is_native
            held = "; values are kept and multiplied in the compute type" if is_held else ""
            self.decide("quantization", chosen.description, source + held)
        return chosen

    def cache_format(self, dtype: str) -> CacheFormat:
        """How keys and values are stored."""
        return resolve_cache_format(
            self.settings, self.config, dtype, has_float8_cache=self.platform.has_float8_cache()
        )

    def note_cache(self, chosen: CacheFormat, specs: Mapping[str, CacheSpec]) -> None:
        """Record how keys and values are stored.

        Raises:
            ConfigError: they are to be quantised, and no layer keeps any.
        """
        if not chosen.dtype:
            if chosen.reason:
                self.decide("kv_cache_dtype", self.settings.cache.kv_cache_dtype, chosen.reason)
            return
        quantized = [spec for spec in specs.values() if is_quantized(spec)]
        others = [spec for spec in specs.values() if not is_quantized(spec)]
        if not quantized and self.settings.cache.kv_cache_dtype != "auto":
            kinds = ", ".join(dict.fromkeys(_KINDS[type(spec)] for spec in others))
            kept = f"its layers' caches are {kinds}" if kinds else "it has no cache"
            raise ConfigError(
                f"kv_cache_dtype is {self.settings.cache.kv_cache_dtype!r}, but the model has no layer whose keys and "
                f"values it applies to: {kept}. Leave it out."
            )
        rest = f"; {len(others)} of {len(specs)} caches are not quantised" if others else ""
        rest += "; PyTorch attends to them, as compiled kernels do not" if self.is_host else ""
        self.decide("kv_cache_dtype", chosen.description, chosen.reason + rest)

    def check_moe_backend(self) -> None:
        """Check that the device has the kernels for experts that are set.

        Raises:
            ConfigError: it does not.
        """
        name, platform = self.settings.model.moe_backend, self.platform
        if name == "auto":
            return
        if name not in platform.moe_backends():
            own = " or ".join(("auto", *platform.moe_backends()))
            raise ConfigError(f"moe_backend is {name!r}, which {platform.describe()} does not have; set {own}.")
        self.decide("moe_backend", name, "as set")

    def tensor_parallel(self) -> TensorParallel:
        """A device's part of the model; all parts have about the same size."""
        device = self.settings.device
        size, backend = device.tensor_parallel_size, device.distributed_executor_backend
        if size > 1:
            if backend == "uni":
                raise ConfigError("distributed_executor_backend is 'uni', which has one device; leave it out.")
            placed = "actors of a Ray cluster" if backend == "ray" else "processes of this machine"
            ranks = f"rank 0 in the engine's process, the others in {placed}; sizes are per device"
            self.decide("tensor_parallel_size", size, f"as set: {ranks}")
        return TensorParallel(size=size)

    def block_size(self) -> int:
        """Tokens per cache block."""
        wanted = self.settings.cache.block_size
        value = wanted or _BLOCK_SIZE
        self.decide("block_size", value, "as set" if wanted else "small blocks let more of a prompt be shared")
        return value

    def max_num_seqs(self) -> int:
        """Maximum number of requests in a step."""
        scheduler = self.settings.scheduler
        if scheduler.max_num_seqs is not None:
            self.decide("max_num_seqs", scheduler.max_num_seqs, "as set")
            return scheduler.max_num_seqs
        value = (_LARGE_MAX_NUM_SEQS if self.is_large else _MAX_NUM_SEQS) * self._default_factor
        reason = "enough to fill a device of this size" if self.is_large else "enough to fill most devices"
        reason = f"{reason}; unused rows cost nothing{self._doubled}"
        limits = {
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
        }
        for name, limit in limits.items():
            if limit is not None and limit < value:
                value, reason = limit, f"no more than {name}, so that every running request gets its token"
        self.decide("max_num_seqs", value, reason)
        return value

    @property
    def _default_factor(self) -> int:
        return 2 if self.settings.scheduler.performance_mode == "throughput" else 1

    @property
    def _doubled(self) -> str:
        return ", doubled for throughput" if self._default_factor > 1 else ""

    def drafter(self) -> NgramDrafts | None:
        """Who drafts tokens."""
        found = resolve_drafts(self.settings, is_pooling=self.config.pooling is not None)
        if found is not None:
            self.decide("speculative_config", f"{found.num_drafts} drafts per step", f"as set: {found.description}")
        return found

    def max_num_batched_tokens(self, max_num_seqs: int, num_drafts: int) -> int:
        """Maximum number of tokens that the buffers of a step hold."""
        wanted = self.settings.scheduler.max_num_batched_tokens
        budget = _LARGE_TOKEN_BUDGET if self.is_large else _HOST_TOKEN_BUDGET if self.is_host else _TOKEN_BUDGET
        usual = budget * self._default_factor
        if wanted is None and self.config.is_encoder:
            value = max(usual, max_num_seqs, self._longest()[0])
            self.decide("max_num_batched_tokens", value, "room for the longest text, which is never split")
            return value
        num_decoded = max_num_seqs * (1 + num_drafts)
        value = wanted or max(usual, num_decoded, self.settings.scheduler.max_num_scheduled_tokens or 0)
        _check_tokens("max_num_batched_tokens", value, max_num_seqs, num_drafts)
        kind = "large device" if self.is_large else self.platform.name
        reason = f"large enough to keep a {kind} busy; a smaller value delays running requests less{self._doubled}"
        self.decide("max_num_batched_tokens", value, "as set" if wanted else reason)
        return value

    def max_num_scheduled_tokens(self, max_num_seqs: int, num_drafts: int, max_num_batched_tokens: int) -> int:
        """Maximum number of tokens scheduled per step."""
        wanted = self.settings.scheduler.max_num_scheduled_tokens
        if wanted is None:
            return max_num_batched_tokens
        if wanted > max_num_batched_tokens:
            raise ConfigError(
                f"max_num_scheduled_tokens ({wanted}) is above max_num_batched_tokens ({max_num_batched_tokens}): a "
                "step has no room for so many. Lower the one or raise the other."
            )
        _check_tokens("max_num_scheduled_tokens", wanted, max_num_seqs, num_drafts)
        self.decide("max_num_scheduled_tokens", wanted, "as set")
        return wanted

    def max_num_mixed_tokens(self, model: ModelSize, num_scheduled: int, num_decoded: int) -> int | None:
        """Maximum number of tokens scheduled in a step in which requests decode; None if there is no such limit.

        Args:
            num_decoded: maximum number of tokens of a step that only decodes.
        """
        scheduler = self.settings.scheduler
        is_set = scheduler.max_num_batched_tokens or scheduler.max_num_scheduled_tokens
        has_chunks = scheduler.enable_chunked_prefill is not False
        if is_set or not has_chunks or not self.is_large or scheduler.performance_mode == "throughput":
            return None
        affordable = int(_MIXED_STEP_OPERATIONS / _operations_per_token(model)) // _CHUNK_UNIT * _CHUNK_UNIT
        value = max(affordable, _LEAST_MIXED_TOKENS, num_decoded + _CHUNK_UNIT)
        if value >= num_scheduled:
            return None
        self.decide("tokens in a step that decodes", value, "running requests wait less for the prompts of others")
        return value

    def num_exact_graphs(self) -> int:
        """Batch size up to which each size has its own graph."""
        mode = self.settings.scheduler.performance_mode
        if mode == "balanced":
            return 0
        reason = "default token budget and batch size are doubled"
        num_exact = 0
        if mode == "interactivity":
            num_exact = _EXACT_GRAPHS if self.platform.captures_graphs else 0
            reason = f"a graph for each batch size up to {num_exact}" if num_exact else "this device has no graphs"
        self.decide("performance_mode", mode, reason)
        return num_exact

    def is_on(self, name: str, wanted: bool | None, reason: str) -> bool:
        """Whether a feature that is on by default is on."""
        value = wanted is None or wanted
        self.decide(name, value, reason if wanted is None else "as set")
        return value

    def check_deterministic(self, specs: Mapping[str, CacheSpec]) -> None:
        """Check that bits do not depend on the batch, if that was asked for.

        Raises:
            ConfigError: kernels of the model's layers choose how they divide sums by the size of the batch.
        """
        if not self.settings.device.deterministic or self.is_host:
            return
        if kinds := kinds_that_depend_on_the_batch(self.platform.kernel_set, specs.values()):
            raise ConfigError(
                f"deterministic does not go with caches {_KINDS[kinds[0]]} on this device: their kernels divide sums "
                "by the size of the batch. Leave it out, or run the model on a CPU."
            )

    def state_interval(self, specs: Mapping[str, CacheSpec]) -> int | None:
        """Tokens between the recurrent states that the prefix cache keeps; None if it is off."""
        wanted = self.settings.cache.mamba_block_size
        has_states = any(isinstance(spec, State) for spec in specs.values())
        if wanted is not None or has_states:
            reason = "as set" if wanted else "each is as large as the keys of hundreds of tokens"
            reason = reason if has_states else "no layer has a recurrent state"
            self.decide("mamba_block_size", wanted or SNAPSHOT_INTERVAL, reason)
        return None if self.settings.cache.enable_prefix_caching is False else wanted or SNAPSHOT_INTERVAL

    def steps_ahead(self) -> int:
        """Number of steps prepared before the tokens of the last one are known."""
        wanted = self.settings.scheduler.async_scheduling
        if self.settings.model.logits_processors:
            if wanted:
                raise ConfigError("async_scheduling does not go with custom logits processors: they need every token.")
            self.decide("async_scheduling", False, "custom logits processors need every token before the next step")
            return 0
        ahead = self.platform.runs_ahead if wanted is None else wanted
        reason = "the device works while the host prepares" if ahead else "host and device are the same processor"
        self.decide("async_scheduling", ahead, "as set" if wanted is not None else reason)
        return int(ahead)

    def max_model_len(self) -> tuple[int, bool]:
        """Longest sequence, and whether the user set it."""
        wanted, own = self.settings.model.max_model_len, self.config.max_position_embeddings
        allowed = self.settings.model.allow_long_max_model_len and not self.config.is_encoder
        if wanted is not None and wanted > own and not allowed:
            raise ConfigError(
                f"max_model_len is {wanted}, but the model was made for at most {own} positions. Lower it, or give "
                "the model a rotary scaling with hf_overrides."
            )
        return self._longest()

    def _longest(self) -> tuple[int, bool]:
        wanted, own = self.settings.model.max_model_len, self.config.max_position_embeddings
        pooling = self.config.pooling
        if wanted is None and pooling is not None and pooling.max_length is not None:
            return min(own, pooling.max_length), False
        return (own, False) if wanted is None else (wanted, True)

    def cache_bytes(self, held: int, parts: Sequence[MemoryPart]) -> int:
        """Bytes for the cache.

        Args:
            held: device memory that this process uses already.
            parts: what it will use in addition.
        """
        cache = self.settings.cache
        if cache.kv_cache_memory_bytes is not None:
            self.decide("kv_cache_memory_bytes", size(cache.kv_cache_memory_bytes), "as set")
            return cache.kv_cache_memory_bytes
        if cache.cpu_cache_memory_bytes is not None and self.is_host:
            self.decide("cpu_cache_memory_bytes", size(cache.cpu_cache_memory_bytes), "as set")
            return cache.cpu_cache_memory_bytes
        share = cache.gpu_memory_utilization
        if self.is_host:
            value, reason = _cpu_cache_bytes(self.memory, share, sum(part.num_bytes for part in parts))
        else:
            value = left_for_cache(self.memory, share, held, parts)
            reason = f"{share:.0%} of {size(self.memory.total)}, minus the other parts"
        self.decide("kv_cache_memory_bytes", size(value), reason)
        return value


def _cpu_cache_bytes(memory: DeviceMemory, share: float, others: int) -> tuple[int, str]:
    """Bytes for the cache in host memory, which other programs share, and the reason."""
    if share == CacheSettings().gpu_memory_utilization:
        value = min(_CPU_CACHE_BYTES, max(0, memory.available - others) // 2)
        reason = f"half of the memory left by the model, at most {size(_CPU_CACHE_BYTES)}; allocated as it fills"
    else:
        value = min(int(share * memory.total), memory.available) - others
        reason = f"{share:.0%} of {size(memory.total)}, minus the other parts"
    if value <= 0:
        raise ConfigError(
            f"No memory is left for the cache: the model takes {size(others)} and the device has "
            f"{size(memory.available)} free. Take a smaller model, lower max_num_batched_tokens, or raise "
            "gpu_memory_utilization."
        )
    return value, reason


def _operations_per_token(model: ModelSize) -> float:
    """What a token of a prompt costs, in operations of dense layers: it passes through the experts it chooses only."""
    if model.routed is None:
        return 2 * model.num_parameters
    dense = model.num_parameters - model.routed.num_parameters
    return 2 * (dense + _ROUTED_COST * model.routed.num_per_token)


def _check_tokens(name: str, value: int, max_num_seqs: int, num_drafts: int) -> None:
    if value < max_num_seqs * (1 + num_drafts):
        drafts = f" times {1 + num_drafts} tokens, drafts included" if num_drafts else ""
        raise ConfigError(
            f"{name} ({value}) is below max_num_seqs ({max_num_seqs}){drafts}: not every running request would get its "
            "token. Raise the one or lower the other."
        )


def adapt_settings(settings: EngineConfig, platform: Platform) -> EngineConfig:
    """The settings after a platform's defaults and checks.

    Raises:
        ConfigError: the platform cannot do what is set.
    """
    return platform.check_and_update_config(platform.apply_config_platform_defaults(settings))


def make_plan(
    settings: EngineConfig,
    config: ModelConfig,
    platform: Platform,
    bandwidth: float = 0.0,
    *,
    is_for_later: bool = False,
) -> Plan:
    """Resolve everything before anything is loaded.

    Args:
        bandwidth: memory read bandwidth in bytes/s, for the speed limit; 0 leaves it out.
        is_for_later: memory is allocated later, so ignore what other processes use now.

    Raises:
        ConfigError: settings that contradict each other, the model or the machine.
        UnsupportedModelError: an architecture that Octavo does not have.
    """
    check_supported(config)
    settings = adapt_settings(settings, platform)
    held, available = platform.used_by_process(), platform.memory()
    if is_for_later:
        available = DeviceMemory(available.total, available.total - held)
    if runtime_of(platform.device).is_host:
        num_ranks = settings.device.tensor_parallel_size  # which share the host's memory
        available = DeviceMemory(available.total // num_ranks, available.available // num_ranks)
    planner = _Planner(settings, config, platform, available)
    dtype = planner.dtype()
    block_size, max_num_seqs, drafter = planner.block_size(), planner.max_num_seqs(), planner.drafter()
    num_drafts = 0 if drafter is None else drafter.num_drafts
    budget = planner.max_num_batched_tokens(max_num_seqs, num_drafts)
    num_scheduled = planner.max_num_scheduled_tokens(max_num_seqs, num_drafts, budget)
    num_exact = planner.num_exact_graphs()
    max_len, is_set = planner.max_model_len()
    planner.check_moe_backend()
    quantization = planner.quantization()
    tensor_parallel = planner.tensor_parallel()
    cache_format = planner.cache_format(dtype)
    model = model_size(config, getattr(torch, dtype), quantization, tensor_parallel, cache_format)
    planner.note_cache(cache_format, model.cache_specs)
    if quantization.description and model.has_plain_experts:
        reason = "the checkpoint has them unquantised, or they are expanded at load (docs/quantization.md, Experts)"
        planner.decide("experts", dtype, reason)
    decode_len = decode_length(config.on_one_device(tensor_parallel.size), model.cache_specs.values(), num_drafts)
    planner.check_deterministic(model.cache_specs)
    interval = planner.state_interval(model.cache_specs)
    groups, block_bytes = make_groups(model.cache_specs, block_size, max_len, 1 + num_drafts, interval)
    table_len = max((-(-max_len // group.block_size) for group in groups), default=0)
    num_recent = recent_tokens(max_len, drafter)
    limits = StepLimits(
        budget, max_num_seqs, max_len, len(groups), table_len, num_exact, num_drafts, decode_len, num_recent
    )
    num_mixed = planner.max_num_mixed_tokens(model, num_scheduled, max_num_seqs * (1 + num_drafts))
    parts = memory_parts(
        config.on_one_device(tensor_parallel.size),
        getattr(torch, dtype),
        model,
        quantization,
        limits,
        platform,
        has_graphs=not settings.model.enforce_eager,
    )
    routing = resolve_routing(settings, config, model, groups)
    if not groups:
        memory = (*_held_part(held), *parts)
        return _plan_without_cache(planner, dtype, block_size, max_num_seqs, budget, num_scheduled, max_len, memory)
    routed_bytes = 0 if routing is None else routing.token_bytes * groups[routing.group].block_size
    num_blocks = settings.cache.num_gpu_blocks_override
    if num_blocks is None:
        num_bytes = planner.cache_bytes(held, parts)
        num_blocks = cache_blocks(num_bytes // (block_bytes + routed_bytes), max_num_seqs, groups, max_len)
    else:
        planner.decide("num_gpu_blocks_override", num_blocks, "as set")
    cache = MemoryPart(CACHE, num_blocks * block_bytes, f"{num_blocks} blocks of {size(block_bytes)}")
    if routing is not None:
        planner.decide("enable_return_routed_experts", "on", "as set")
        reason = f"{routing.token_bytes} bytes for each token in the cache"
        parts = (*parts, MemoryPart("experts of tokens", num_blocks * routed_bytes, reason))
    is_sized_by_hand = settings.cache.num_gpu_blocks_override or settings.cache.kv_cache_memory_bytes
    if is_sized_by_hand and not planner.is_host:
        check_room(planner.memory, held, (*parts, cache))
    max_len, reason = fit_length(groups, num_blocks, num_scheduled, max_len, is_set, block_bytes)
    planner.decide("max_model_len", max_len, reason)
    _note_groups(planner, groups)
    has_prefix_caching = planner.is_on(
        "enable_prefix_caching",
        settings.cache.enable_prefix_caching,
        "hits save computation, and keeping blocks costs nothing",
    )
    has_chunks = planner.is_on(
        "enable_chunked_prefill",
        settings.scheduler.enable_chunked_prefill,
        "running requests continue while a long prompt is computed",
    )
    has_limit = bandwidth and config.pooling is None
    # Processes of one machine share its bandwidth.
    num_sharers = tensor_parallel.size if planner.is_host else 1
    read = num_sharers * sum(group.num_read for group in model.weights)
    limit = bandwidth / read if has_limit else 0.0
    return Plan(
        dtype=dtype,
        max_model_len=max_len,
        block_size=block_size,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        groups=groups,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=num_scheduled,
        max_num_mixed_tokens=num_mixed,
        num_exact_graphs=num_exact,
        enable_prefix_caching=has_prefix_caching,
        enable_chunked_prefill=has_chunks,
        scheduling_policy=settings.scheduler.scheduling_policy,
        num_steps_ahead=planner.steps_ahead(),
        drafter=drafter,
        decode_len=decode_len,
        routing=routing,
        memory=(*_held_part(held), *parts, cache),
        cache_tokens=cache_tokens(num_blocks, groups),
        weights=model.weights,
        decode_limit=limit,
        decisions=tuple(planner.decisions),
    )


def _plan_without_cache(
    planner: _Planner,
    dtype: str,
    block_size: int,
    max_num_seqs: int,
    budget: int,
    num_scheduled: int,
    max_len: int,
    memory: tuple[MemoryPart, ...],
) -> Plan:
    """The plan of an encoder: every text is computed in one step, without a cache."""
    planner.decide("max_model_len", max_len, "the model's context length, unless it is set")
    planner.decide("cache groups", 0, "tokens attend to later ones, too, so nothing computed can be reused")
    return Plan(
        dtype=dtype,
        max_model_len=max_len,
        block_size=block_size,
        num_blocks=_LEAST_BLOCKS,
        block_bytes=0,
        groups=(),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=num_scheduled,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        scheduling_policy=planner.settings.scheduler.scheduling_policy,
        num_steps_ahead=planner.steps_ahead(),
        memory=memory,
        decisions=tuple(planner.decisions),
    )


def _held_part(held: int) -> list[MemoryPart]:
    return [MemoryPart(HELD, held, "the driver's context, kernels, and other memory of this process")] if held else []


_KINDS: dict[type[CacheSpec], str] = {
    Full: "with full attention",
    SlidingWindow: "with a sliding window",
    ChunkedLocal: "with attention within chunks",
    Latent: "of latent vectors",
    State: "of recurrent states",
}


def _note_groups(planner: _Planner, groups: tuple[CacheGroup, ...]) -> None:
    counts = Counter(type(group.spec) for group in groups)
    reason = ", ".join(f"{count} {_KINDS[kind]}" for kind, count in counts.items())
    if set(counts) == {Full}:
        reason = "all layers attend to the whole sequence"
    planner.decide("cache groups", len(groups), reason)
