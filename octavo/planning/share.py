"""The process's share of a device's memory, and what of it is left for the cache."""

from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.planning.units import size
from octavo.platforms import DeviceMemory
from octavo.records import MemoryPart

# The driver reserves some memory that is neither free nor attributed to a process.
_DRIVER_BYTES = 1 << 30


def left_for_cache(memory: DeviceMemory, share: float, held: int, parts: Sequence[MemoryPart]) -> int:
    """Bytes left for the cache in this process's share of a device.

    Args:
        share: share of the device's total memory that this process may use.
        held: bytes that this process uses already.
        parts: what it will use in addition, without the cache.

    Raises:
        ConfigError: other processes use part of the share, or the parts use all of it.
    """
    allowed = int(share * memory.total)
    reachable = memory.available + held
    if reachable < allowed - _DRIVER_BYTES:
        raise ConfigError(
            f"This process may use {size(allowed)} ({share:.0%} of the device's {size(memory.total)}), but other "
            f"processes leave it {size(reachable)}. Free the device, or lower gpu_memory_utilization to "
            f"{int(reachable / memory.total * 100) / 100:.2f}; take less with kv_cache_memory_bytes and a smaller "
            "max_model_len, max_num_batched_tokens or max_num_seqs; or use another device."
        )
    left = min(allowed, reachable) - held - sum(part.num_bytes for part in parts)
    if left <= 0:
        raise ConfigError(
            f"No memory is left for the cache: this process may use {size(min(allowed, reachable))} "
            f"({share:.0%} of the device's {size(memory.total)}), and {_parts_text(held, parts)} take it all. Raise "
            "gpu_memory_utilization; lower max_num_batched_tokens, max_num_seqs or max_model_len; or take a smaller "
            "or quantised model, or a larger device."
        )
    return left


def check_room(memory: DeviceMemory, held: int, parts: Sequence[MemoryPart]) -> None:
    """Check that all parts, with a cache of a size that was set, fit into free memory.

    Raises:
        ConfigError: they do not.
    """
    reachable = memory.available + held
    if held + sum(part.num_bytes for part in parts) > reachable:
        raise ConfigError(
            f"The device has {size(reachable)} for this process, and {_parts_text(held, parts)} take more. Lower "
            "kv_cache_memory_bytes or num_gpu_blocks_override; lower max_num_batched_tokens, max_num_seqs or "
            "max_model_len; or take a smaller or quantised model, or free the device."
        )


def _parts_text(held: int, parts: Sequence[MemoryPart]) -> str:
    """``weights (15.26 GiB), …``, the largest first."""
    named = [*parts, MemoryPart("what it holds already", held)]
    shown = sorted((part for part in named if part.num_bytes), key=lambda part: -part.num_bytes)
    return ", ".join(f"{part.name} ({size(part.num_bytes)})" for part in shown)
