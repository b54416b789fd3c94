"""Cache groups: which layers share a block table."""

from octavo.hub.model_config import ModelConfig
from octavo.records import CacheGroup


def make_groups(config: ModelConfig, max_model_len: int) -> tuple[CacheGroup, ...]:
    """Split the layers into groups with the same kind of attention and, as far as possible, the same size.

    All groups share one pool whose blocks have room for the largest group, so equal sizes waste nothing. Layers of the
    less frequent kind form one group, and the others are split into groups of about that size: 15 sliding and 3 full
    layers become five groups and one. Encoders have no cache and no groups.
    """
    if config.is_encoder:
        return ()
    window = config.sliding_window
    sliding = [i for i, kind in enumerate(config.layer_types) if kind == "sliding_attention" and window is not None]
    full = [i for i in range(config.num_layers) if i not in set(sliding)]
    if window is not None and window >= max_model_len:
        # Such a window masks nothing and frees no blocks.
        sliding, full = [], list(range(config.num_layers))
    size = min(len(kind) for kind in (sliding, full) if kind)
    groups = [CacheGroup(layers, None) for layers in _deal(full, size)]
    groups += [CacheGroup(layers, window) for layers in _deal(sliding, size)]
    return tuple(groups)


def _deal(layers: list[int], size: int) -> list[tuple[int, ...]]:
    """Split evenly into groups of at most ``size``."""
    if not layers:
        return []
    count = -(-len(layers) // size)
    return [tuple(layers[index::count]) for index in range(count)]


def longest_sequence(groups: tuple[CacheGroup, ...], num_blocks: int, block_size: int, max_chunk: int) -> int:
    """Length in tokens of the longest sequence that fits into the cache.

    Args:
        num_blocks: blocks that can be allocated.
        max_chunk: maximum tokens of one request in a step; a window's blocks are freed only after the chunk.
    """
    bounded = [-(-(group.window - 1 + max_chunk) // block_size) + 1 for group in groups if group.window is not None]
    num_full = len(groups) - len(bounded)
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        needed = num_full * middle + sum(min(middle, limit) for limit in bounded)
        low, high = (middle, high) if needed <= num_blocks else (low, middle - 1)
    return low * block_size if num_full else max(low * block_size, _unbounded(bounded, num_blocks))


def _unbounded(bounded: list[int], num_blocks: int) -> int:
    """With sliding windows only, sequences of any length fit if the windows do."""
    return 1 << 40 if sum(bounded) <= num_blocks else 0
