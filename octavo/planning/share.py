"""What a process may take of a device's memory, and what of it is left for the cache."""

from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.planning.units import size
from octavo.platforms import DeviceMemory
from octavo.records import MemoryPart

# The driver keeps some memory to itself that is neither free nor anybody's.
_DRIVER_BYTES = 1 << 30


def left_for_cache(memory: DeviceMemory, share: float, held: int, parts: Sequence[MemoryPart]) -> int:
    """Bytes that this process's share of a device leaves for the cache.

    Args:
        share: of all the device's memory, that this process may use for everything.
        held: bytes that this process uses already.
        parts: what it will use besides, without the cache.

    Raises:
        ConfigError: others use what this process may take, or the parts take it all.
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
            f"({share:.0%} of the device's {size(memory.total)}), and {_in_words(held, parts)} take it all. Raise "
            "gpu_memory_utilization; lower max_num_batched_tokens, max_num_seqs or max_model_len; or take a smaller "
            "or quantised model, or a larger device."
        )
    return left


def check_room(memory: DeviceMemory, held: int, parts: Sequence[MemoryPart]) -> None:
    """Check that what was asked for by size, cache included, can be had.

    Raises:
        ConfigError: it cannot.
    """
    reachable = memory.available + held
    if held + sum(part.num_bytes for part in parts) > reachable:
        raise ConfigError(
            f"The device has {size(reachable)} for this process, and {_in_words(held, parts)} take more. Lower "
            "kv_cache_memory_bytes or num_gpu_blocks_override; lower max_num_batched_tokens, max_num_seqs or "
            "max_model_len; or take a smaller or quantised model, or free the device."
        )


def _in_words(held: int, parts: Sequence[MemoryPart]) -> str:
    """``weights (15.26 GiB), …``, the largest first."""
    named = [*parts, MemoryPart("what it holds already", held)]
    shown = sorted((part for part in named if part.num_bytes), key=lambda part: -part.num_bytes)
    return ", ".join(f"{part.name} ({size(part.num_bytes)})" for part in shown)
