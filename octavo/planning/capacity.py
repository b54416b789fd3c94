"""How many blocks a cache has, and how long a sequence they hold."""

from collections.abc import Collection
from dataclasses import replace

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.planning.groups import longest_sequence
from octavo.planning.parts import TABLES, WEIGHTS
from octavo.planning.share import left_for_cache
from octavo.planning.units import size
from octavo.platforms import Platform
from octavo.records import CacheGroup, MemoryPart, Plan

CACHE = "key/value cache"
HELD = "device context"


def cache_blocks(
    num_affordable: int, max_num_seqs: int, groups: tuple[CacheGroup, ...], max_len: int, block_size: int
) -> int:
    """Blocks of the pool, block 0 included: as many as memory affords, but no more than all requests together fill."""
    most = max_num_seqs * len(groups) * -(-max_len // block_size)
    return min(num_affordable, most) + 1


def cache_tokens(num_blocks: int, groups: tuple[CacheGroup, ...], block_size: int) -> int:
    """Tokens that fit when every layer keeps all of them."""
    return (num_blocks - 1) // len(groups) * block_size


def fit_length(
    groups: tuple[CacheGroup, ...],
    num_blocks: int,
    block_size: int,
    budget: int,
    max_len: int,
    is_set: bool,
    bytes_per_block: int,
) -> tuple[int, str]:
    """The longest sequence that the cache holds, at most ``max_len``, and why.

    Args:
        is_set: ``max_len`` was asked for.

    Raises:
        ConfigError: the cache holds nothing, or not what was asked for.
    """
    capacity = longest_sequence(groups, num_blocks - 1, block_size, min(budget, max_len))
    if capacity >= max_len:
        return max_len, "as set" if is_set else "what the model was made for"
    if capacity < 1:
        raise ConfigError("The cache does not hold one block; give it more memory (kv_cache_memory_bytes).")
    if is_set:
        raise ConfigError(
            f"One sequence of max_model_len {max_len} tokens does not fit the cache, which holds {capacity} tokens at "
            f"{size(bytes_per_block)} a block. Lower max_model_len to {capacity}, or give the cache more memory "
            "(kv_cache_memory_bytes or gpu_memory_utilization)."
        )
    return capacity, f"what the cache holds; the model was made for {max_len}"


def fit_cache(
    plan: Plan, settings: EngineConfig, platform: Platform, *, loaded: Collection[str] = (WEIGHTS, TABLES)
) -> Plan:
    """The plan with the cache that fits beside what a loaded model really takes, in place of the estimate.

    Where memory is not rationed, or the cache's size was set, the plan stays as it is.

    Args:
        loaded: parts of ``plan.memory`` that lie in memory by now; for the others the plan's figures hold.

    Raises:
        ConfigError: no memory is left for a cache, or not enough for the ``max_model_len`` that was asked for.
    """
    held = platform.used_by_process()
    cache = settings.cache
    is_sized_by_hand = cache.num_gpu_blocks_override is not None or cache.kv_cache_memory_bytes is not None
    if not held or not plan.groups or is_sized_by_hand:
        return plan
    to_come = [part for part in plan.memory if part.name not in (HELD, CACHE, *loaded)]
    num_bytes = left_for_cache(platform.memory(), cache.gpu_memory_utilization, held, to_come)
    bytes_per_block = plan.memory_of(CACHE) // plan.num_blocks
    num_blocks = cache_blocks(
        num_bytes // bytes_per_block, plan.max_num_seqs, plan.groups, plan.max_model_len, plan.block_size
    )
    context = held - sum(plan.memory_of(name) for name in loaded)
    return _resized(plan, settings, num_blocks, {HELD: context})


def resize_cache(plan: Plan, settings: EngineConfig, num_blocks: int) -> Plan:
    """The plan with a cache whose size was found out before.

    Raises:
        ConfigError: it does not hold the ``max_model_len`` that was asked for.
    """
    return plan if num_blocks == plan.num_blocks else _resized(plan, settings, num_blocks, {})


def _resized(plan: Plan, settings: EngineConfig, num_blocks: int, sizes: dict[str, int]) -> Plan:
    bytes_per_block = plan.memory_of(CACHE) // plan.num_blocks
    max_len, _ = fit_length(
        plan.groups,
        num_blocks,
        plan.block_size,
        plan.token_budget,
        plan.max_model_len,
        settings.model.max_model_len is not None,
        bytes_per_block,
    )
    sizes = sizes | {CACHE: num_blocks * bytes_per_block}
    return replace(
        plan,
        num_blocks=num_blocks,
        max_model_len=max_len,
        memory=tuple(MemoryPart(part.name, sizes.get(part.name, part.num_bytes), part.reason) for part in plan.memory),
        cache_tokens=cache_tokens(num_blocks, plan.groups, plan.block_size),
    )
