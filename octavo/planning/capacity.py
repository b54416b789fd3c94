"""The number of cache blocks, and the longest sequence that fits into them."""

from collections.abc import Collection
from dataclasses import replace

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.planning.groups import longest_sequence
from octavo.planning.parts import TABLES, WEIGHTS
from octavo.planning.share import left_for_cache
from octavo.planning.units import size
from octavo.platforms import DeviceMemory
from octavo.records import CacheGroup, MemoryPart, Plan

CACHE = "key/value cache"
HELD = "device context"


def cache_blocks(num_affordable: int, max_num_seqs: int, groups: tuple[CacheGroup, ...], max_len: int) -> int:
    """Number of blocks in the pool, block 0 included: as many as fit, but no more than all requests can fill."""
    # What requests drop stays cached until its blocks are needed, so windows count as if they kept everything.
    most = max_num_seqs * sum(-(-max_len // group.block_size) for group in groups)
    return min(num_affordable, most) + 1


def cache_tokens(num_blocks: int, groups: tuple[CacheGroup, ...]) -> int:
    """Number of tokens that fit if every layer keeps all of them."""
    if len({group.block_size for group in groups}) == 1:
        return (num_blocks - 1) // len(groups) * groups[0].block_size
    return int((num_blocks - 1) / sum(1 / group.block_size for group in groups))


def fit_length(
    groups: tuple[CacheGroup, ...],
    num_blocks: int,
    budget: int,
    max_len: int,
    is_set: bool,
    bytes_per_block: int,
) -> tuple[int, str]:
    """The longest sequence that fits into the cache, at most ``max_len``, and the reason.

    Args:
        is_set: the user set ``max_len``.

    Raises:
        ConfigError: the cache has no block, or does not fit a length that was set.
    """
    capacity = longest_sequence(groups, num_blocks - 1, min(budget, max_len))
    if capacity >= max_len:
        return max_len, "as set" if is_set else "the model's context length"
    if capacity < 1:
        raise ConfigError("The cache does not hold one block; give it more memory (kv_cache_memory_bytes).")
    if is_set:
        raise ConfigError(
            f"One sequence of max_model_len {max_len} tokens does not fit the cache, which holds {capacity} tokens at "
            f"{size(bytes_per_block)} a block. Lower max_model_len to {capacity}, or give the cache more memory "
            "(kv_cache_memory_bytes or gpu_memory_utilization)."
        )
    return capacity, f"the longest that fits the cache; the model's context length is {max_len}"


def fit_cache(
    plan: Plan,
    settings: EngineConfig,
    held: int,
    memory: DeviceMemory,
    *,
    loaded: Collection[str] = (WEIGHTS, TABLES),
) -> Plan:
    """The plan with the cache sized by the memory that a loaded model actually uses, instead of the estimate.

    If the platform does not report usage, or the cache's size was set, the plan is returned unchanged.

    Args:
        held: bytes of device memory that the process uses; 0 if the platform does not report it.
        memory: the device's.
        loaded: parts of ``plan.memory`` that are allocated by now; for the others the plan's estimates apply.

    Raises:
        ConfigError: no memory is left for a cache, or not enough for a ``max_model_len`` that was set.
    """
    cache = settings.cache
    is_sized_by_hand = cache.num_gpu_blocks_override is not None or cache.kv_cache_memory_bytes is not None
    if not held or not plan.groups or is_sized_by_hand:
        return plan
    to_come = [part for part in plan.memory if part.name not in (HELD, CACHE, *loaded)]
    num_bytes = left_for_cache(memory, cache.gpu_memory_utilization, held, to_come)
    num_blocks = cache_blocks(num_bytes // plan.block_bytes, plan.max_num_seqs, plan.groups, plan.max_model_len)
    context = held - sum(plan.memory_of(name) for name in loaded)
    return _resized(plan, settings, num_blocks, {HELD: context})


def resize_cache(plan: Plan, settings: EngineConfig, num_blocks: int) -> Plan:
    """The plan with a cache of a size determined before.

    Raises:
        ConfigError: a ``max_model_len`` that was set does not fit.
    """
    return plan if num_blocks == plan.num_blocks else _resized(plan, settings, num_blocks, {})


def _resized(plan: Plan, settings: EngineConfig, num_blocks: int, sizes: dict[str, int]) -> Plan:
    max_len, _ = fit_length(
        plan.groups,
        num_blocks,
        plan.token_budget,
        plan.max_model_len,
        settings.model.max_model_len is not None,
        plan.block_bytes,
    )
    sizes = sizes | {CACHE: num_blocks * plan.block_bytes}
    return replace(
        plan,
        num_blocks=num_blocks,
        max_model_len=max_len,
        memory=tuple(MemoryPart(part.name, sizes.get(part.name, part.num_bytes), part.reason) for part in plan.memory),
        cache_tokens=cache_tokens(num_blocks, plan.groups),
    )
