"""Cache groups: which layers share a block table, and how many tokens a block of each has."""

from collections.abc import Mapping
from math import lcm

from octavo.records import CacheGroup, CacheSpec, ChunkedLocal, Full, Latent, SlidingWindow, State, is_quantized

SNAPSHOT_INTERVAL = 512
"""Tokens between the states that prompts continue from: a state is as large as the keys of some hundred."""

_MAX_HASHES = 4
"""Hashes per block up to which a group whose layers are few or small counts as well packed."""

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
    counts = {spec: len(names) for spec, names in by_kind.items()}
    sizes_of = _even_sizes(counts) if _is_half_quantized(counts) else dict.fromkeys(counts, min(counts.values()))
    parts = [(spec, layers) for spec, names in by_kind.items() for layers in _deal(names, sizes_of[spec])]
    parts.sort(key=lambda part: (part[0].reach is not None, part[0].reach or 0))
    sizes = _block_sizes(parts, hash_size, max_model_len, num_places, interval)
    groups = tuple(CacheGroup(layers, spec, size) for (spec, layers), size in zip(parts, sizes, strict=True))
    unit = lcm(*(_unit(group) for group in groups), 16)
    return groups, -(-max(group.block_bytes(num_places) for group in groups) // unit) * unit


def _unit(group: CacheGroup) -> int:
    """Bytes of which blocks have a multiple: kernels find blocks of keys and values by counting heads' keys."""
    if isinstance(group.spec, Full):
        return group.block_size * group.spec.run_bytes
    return group.spec.run_bytes if isinstance(group.spec, Latent) else 1


def _effective(spec: CacheSpec, max_model_len: int) -> CacheSpec:
    """A window or a chunk that spans the longest sequence masks nothing and frees no blocks."""
    if isinstance(spec, SlidingWindow | ChunkedLocal) and (spec.reach or 0) >= max_model_len:
        return Full(spec.num_kv_heads, spec.head_dim, spec.dtype, has_scales=spec.has_scales)
    return spec


def _is_half_quantized(counts: Mapping[CacheSpec, int]) -> bool:
    """Whether some layers keep keys and values in the compute type, and others do not."""
    return len({is_quantized(spec) for spec in counts if not isinstance(spec, State)}) > 1


def _even_sizes(counts: Mapping[CacheSpec, int]) -> dict[CacheSpec, int]:
    """Layers per group of each kind such that groups are of about as many bytes, though layers are not.

    Every way to cut one kind into equal groups tells how large a block is, and so how many layers of another kind fit,
    and for how many tokens. The best is the one with the fewest bytes per token; of equal ones that with fewer groups.

    Args:
        counts: number of layers by kind.
    """
    layer_bytes = {spec: spec.block_bytes(_SCAN_UNIT, 1) for spec in counts}
    best: tuple[float, int, dict[CacheSpec, int]] | None = None
    for kind, count in counts.items():
        for num_groups in range(1, count + 1):
            room = -(-count // num_groups) * layer_bytes[kind]
            if room < max(layer_bytes.values()):
                break
            sizes, num_bytes, total = {}, 0.0, 0
            for spec, layers in counts.items():
                number = -(-layers // min(room // layer_bytes[spec], layers))
                sizes[spec] = -(-layers // number)
                num_hashes = room // (sizes[spec] * layer_bytes[spec])
                num_bytes += number * room / min(num_hashes, _MAX_HASHES)
                total += number
            if best is None or (num_bytes, total) < best[:2]:
                best = num_bytes, total, sizes
    assert best is not None, "one group per kind is always possible"
    return best[2]


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
