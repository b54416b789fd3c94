"""One-time resolution of all settings against model and device, each with its reason."""

import torch

from octavo.config import CacheSettings, EngineConfig
from octavo.errors import ConfigError
from octavo.hub.model_config import ModelConfig
from octavo.models.registry import check_supported
from octavo.planning.groups import longest_sequence, make_groups
from octavo.planning.memory import (
    activation_bytes,
    block_bytes,
    num_parameters,
    parameters_read_per_token,
    state_bytes,
)
from octavo.platforms import DeviceMemory, Platform, compute_type
from octavo.records import CacheGroup, Decision, MemoryPart, Plan

_CPU_CACHE_BYTES = 4 << 30
_BLOCK_SIZE = 16
_MAX_NUM_SEQS = 256
_TOKEN_BUDGET = {"cpu": 1024, "cuda": 8192}
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}


class _Planner:
    """Resolves one setting after another, noting why."""

    def __init__(self, settings: EngineConfig, config: ModelConfig, platform: Platform) -> None:
        self.settings = settings
        self.config = config
        self.platform = platform
        self.decisions: list[Decision] = []

    def decide(self, name: str, value: object, reason: str) -> None:
        """Note a decision."""
        self.decisions.append(Decision(name, str(value), reason))

    def dtype(self) -> str:
        """The type to compute in."""
        wanted = self.settings.model.dtype
        fast = self.platform.fast_dtypes()
        if wanted != "auto":
            name = _DTYPE_ALIASES.get(wanted, wanted)
            self.decide("dtype", name, "as set")
            return name
        own = compute_type(self.config.dtype)
        if own in fast and own is not torch.float32:
            self.decide("dtype", self.config.dtype, "the checkpoint's own type, and fast on this device")
            return self.config.dtype
        name = str(fast[0]).removeprefix("torch.")
        self.decide("dtype", name, f"the fastest type of this device; the checkpoint is {self.config.dtype}")
        return name

    def block_size(self) -> int:
        """Tokens a cache block."""
        wanted = self.settings.cache.block_size
        value = wanted or _BLOCK_SIZE
        self.decide("block_size", value, "as set" if wanted else "small blocks let more of a prompt be shared")
        return value

    def max_num_seqs(self) -> int:
        """Most requests in a step."""
        wanted = self.settings.scheduler.max_num_seqs
        value = wanted or _MAX_NUM_SEQS
        self.decide("max_num_seqs", value, "as set" if wanted else "enough to fill any device; few cost nothing")
        return value

    def max_num_batched_tokens(self, max_num_seqs: int) -> int:
        """The token budget of a step."""
        wanted = self.settings.scheduler.max_num_batched_tokens
        value = wanted or max(_TOKEN_BUDGET[self.platform.name], max_num_seqs)
        if value < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({value}) is below max_num_seqs ({max_num_seqs}): not every running request "
                "would get its token. Raise the one or lower the other."
            )
        reason = f"long enough to keep a {self.platform.name} busy, short enough not to hold up running requests"
        self.decide("max_num_batched_tokens", value, "as set" if wanted else reason)
        return value

    def steps_ahead(self) -> int:
        """Steps prepared before the last one's tokens are known."""
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
        """Longest sequence, and whether it was set by hand."""
        wanted, own = self.settings.model.max_model_len, self.config.max_position_embeddings
        if wanted is not None and wanted > own:
            raise ConfigError(
                f"max_model_len is {wanted}, but the model was made for at most {own} positions. Lower it, or give "
                "the model a rotary scaling with hf_overrides."
            )
        return (own, False) if wanted is None else (wanted, True)

    def cache_bytes(self, memory: DeviceMemory, other_parts: int) -> int:
        """Bytes for the cache."""
        cache = self.settings.cache
        if cache.kv_cache_memory_bytes is not None:
            self.decide("kv_cache_memory_bytes", size(cache.kv_cache_memory_bytes), "as set")
            return cache.kv_cache_memory_bytes
        share = cache.gpu_memory_utilization
        if self.platform.name == "cpu" and share == CacheSettings().gpu_memory_utilization:
            free = max(0, memory.available - other_parts)
            value = min(_CPU_CACHE_BYTES, free // 2)
            reason = f"half of what is free beside the model, at most {size(_CPU_CACHE_BYTES)}; taken as it fills"
        else:
            value = min(int(share * memory.total), memory.available) - other_parts
            reason = f"{share:.0%} of {size(memory.total)}, less what the rest takes"
        if value <= 0:
            raise ConfigError(
                f"No memory is left for the cache: the model takes {size(other_parts)} and the device has "
                f"{size(memory.available)} free. Take a smaller model, lower max_num_batched_tokens, or raise "
                "gpu_memory_utilization."
            )
        self.decide("kv_cache_memory_bytes", size(value), reason)
        return value


def make_plan(settings: EngineConfig, config: ModelConfig, platform: Platform, bandwidth: float = 0.0) -> Plan:
    """Decide everything before anything is loaded.

    Args:
        bandwidth: memory read bandwidth in bytes a second, for the speed limit; 0 leaves it out.

    Raises:
        ConfigError: settings that contradict each other, the model or the machine.
        UnsupportedModelError: an architecture that Octavo does not have.
    """
    check_supported(config.architecture)
    if settings.device.tensor_parallel_size != 1:
        raise ConfigError("tensor_parallel_size must be 1: sharing a model over devices is not there yet.")
    if settings.model.trust_remote_code:
        raise ConfigError("trust_remote_code is refused: Octavo runs no code from a model's folder.")
    planner = _Planner(settings, config, platform)
    dtype = planner.dtype()
    itemsize = getattr(torch, dtype).itemsize
    block_size, max_num_seqs = planner.block_size(), planner.max_num_seqs()
    budget = planner.max_num_batched_tokens(max_num_seqs)
    max_len, is_set = planner.max_model_len()
    parts = (
        MemoryPart("weights", num_parameters(config) * itemsize),
        MemoryPart("activations", activation_bytes(config, budget, max_num_seqs, itemsize)),
        MemoryPart("batch state", state_bytes(max_num_seqs, max_len)),
    )
    groups = make_groups(config, max_len)
    bytes_per_block = block_bytes(config, block_size, max(len(group.layers) for group in groups), itemsize)
    num_blocks = settings.cache.num_gpu_blocks_override
    if num_blocks is None:
        num_bytes = planner.cache_bytes(platform.memory(), sum(part.num_bytes for part in parts))
        most = max_num_seqs * len(groups) * -(-max_len // block_size)
        num_blocks = min(num_bytes // bytes_per_block, most) + 1
    else:
        planner.decide("num_gpu_blocks_override", num_blocks, "as set")
    capacity = longest_sequence(groups, num_blocks - 1, block_size, min(budget, max_len))
    max_len = _fit_length(planner, max_len, is_set, capacity, bytes_per_block)
    _note_groups(planner, groups)
    planner.decide(
        "enable_prefix_caching",
        settings.cache.enable_prefix_caching,
        "a hit saves computing, and keeping blocks costs nothing" if settings.cache.enable_prefix_caching else "as set",
    )
    limit = bandwidth / (parameters_read_per_token(config) * itemsize) if bandwidth else 0.0
    return Plan(
        dtype=dtype,
        max_model_len=max_len,
        block_size=block_size,
        num_blocks=num_blocks,
        groups=groups,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=settings.cache.enable_prefix_caching,
        enable_chunked_prefill=settings.scheduler.enable_chunked_prefill,
        scheduling_policy=settings.scheduler.scheduling_policy,
        num_steps_ahead=planner.steps_ahead(),
        memory=(*parts, MemoryPart("key/value cache", num_blocks * bytes_per_block)),
        cache_tokens=(num_blocks - 1) // len(groups) * block_size,
        decode_limit=limit,
        decisions=tuple(planner.decisions),
    )


def size(num_bytes: int) -> str:
    """Bytes for a person: ``1.5 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _fit_length(planner: _Planner, max_len: int, is_set: bool, capacity: int, bytes_per_block: int) -> int:
    """Longest sequence that the cache holds, or a refusal."""
    if capacity >= max_len:
        planner.decide("max_model_len", max_len, "as set" if is_set else "what the model was made for")
        return max_len
    if capacity < 1:
        raise ConfigError("The cache does not hold one block; give it more memory (kv_cache_memory_bytes).")
    if is_set:
        raise ConfigError(
            f"One sequence of max_model_len {max_len} tokens does not fit the cache, which holds {capacity} tokens at "
            f"{size(bytes_per_block)} a block. Lower max_model_len to {capacity}, or give the cache more memory "
            "(kv_cache_memory_bytes or gpu_memory_utilization)."
        )
    planner.decide("max_model_len", capacity, f"what the cache holds; the model was made for {max_len}")
    return capacity


def _note_groups(planner: _Planner, groups: tuple[CacheGroup, ...]) -> None:
    sliding = sum(group.window is not None for group in groups)
    if sliding:
        reason = f"{len(groups) - sliding} of full attention, {sliding} with a sliding window, which give blocks back"
    else:
        reason = "all layers see the whole sequence"
    planner.decide("cache groups", len(groups), reason)
