"""Cache groups: which layers share a block table, and how many tokens a block of each has."""

from collections.abc import Mapping
from math import lcm

from octavo.records import CacheGroup, CacheSpec, Full, SlidingWindow, State

SNAPSHOT_INTERVAL = 512
"""Tokens between the states that prompts continue from: a state is as large as the keys of some hundred."""

_SCAN_UNIT = 16
"""Blocks of states end where kernels that scan many tokens at a time can stop."""


def make_groups(
    specs: Mapping[str, CacheSpec], hash_size: int, max_model_len: int, num_places: int, interval: int | None
) -> tuple[tuple[CacheGroup, ...], int]:
    """Split a model's caches into groups of one kind and, as far as possible, the same size.

    All groups share one pool whose blocks have room for the largest group, so equal sizes waste nothing. Caches of the
    least frequent kind form one group, and the others are split into groups of about that size: 15 sliding and 3 full
    layers become five groups and one.

    Args:
        specs: each cache by its name, in the order of the layers.
        hash_size: tokens per prefix hash; blocks have a multiple of it.
        num_places: states per block; see :class:`State`.
        interval: tokens between the states that are kept, at least; None without prefix caching.

    Returns:
        The groups, and the bytes of a block.
    """
    by_kind: dict[CacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_kind.setdefault(_effective(spec, max_model_len), []).append(name)
    if not by_kind:
        return (), 0
    size = min(map(len, by_kind.values()))
    parts = [(spec, layers) for spec, names in by_kind.items() for layers in _deal(names, size)]
    parts.sort(key=lambda part: (part[0].reach is not None, part[0].reach or 0))
    sizes = _block_sizes(parts, hash_size, max_model_len, num_places, interval)
    groups = tuple(CacheGroup(layers, spec, size) for (spec, layers), size in zip(parts, sizes, strict=True))
    unit = lcm(*(group.block_size * group.spec.run_bytes for group in groups if not isinstance(group.spec, State)), 16)
    return groups, -(-max(group.block_bytes(num_places) for group in groups) // unit) * unit


def _effective(spec: CacheSpec, max_model_len: int) -> CacheSpec:
    """A window that spans the longest sequence masks nothing and frees no blocks."""
    if isinstance(spec, SlidingWindow) and spec.window >= max_model_len:
        return Full(spec.num_kv_heads, spec.head_dim, spec.dtype)
    return spec


def _block_sizes(
    parts: list[tuple[CacheSpec, tuple[str, ...]]],
    hash_size: int,
    max_model_len: int,
    num_places: int,
    interval: int | None,
) -> list[int]:
    """Tokens per block of each group, so that their blocks are of about the same number of bytes.

    A recurrent state does not depend on the number of tokens; theirs is the distance between snapshots.
    """
    hashed = [len(layers) * spec.block_bytes(hash_size, num_places) for spec, layers in parts]
    is_state = [isinstance(spec, State) for spec, _ in parts]
    paged = [num_bytes for num_bytes, state in zip(hashed, is_state, strict=True) if not state]
    if not paged:
        room = 0
    else:
        # The smallest number of hashes for which a block has room for the largest state.
        num_hashes = max(-(-num_bytes // max(paged)) for num_bytes in hashed)
        room = num_hashes * max(paged)
    longest = -(-max_model_len // hash_size) * hash_size
    sizes = [
        0 if state else min(room // num_bytes * hash_size, longest)
        for num_bytes, state in zip(hashed, is_state, strict=True)
    ]
    unit = lcm(max(sizes) or hash_size, _SCAN_UNIT)
    kept = -(-(longest if interval is None else interval) // unit) * unit
    return [kept if state else size for size, state in zip(sizes, is_state, strict=True)]


def _deal(names: list[str], size: int) -> list[tuple[str, ...]]:
    """Split evenly into groups of at most ``size``."""
    count = -(-len(names) // size)
    return [tuple(names[index::count]) for index in range(count)]


def longest_sequence(groups: tuple[CacheGroup, ...], num_blocks: int, max_chunk: int) -> int:
    """Length in tokens of the longest sequence that fits into the cache.

    Args:
        num_blocks: blocks that can be allocated.
        max_chunk: maximum tokens of one request in a step; a window's blocks are freed only after the chunk.
    """
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high + 1) // 2
        needed = sum(group.max_blocks(middle, max_chunk) for group in groups)
        low, high = (middle, high) if needed <= num_blocks else (low, middle - 1)
    return low
