"""Which layers share a block table."""

from octavo.hub.model_config import ModelConfig
from octavo.records import CacheGroup


def make_groups(config: ModelConfig, max_model_len: int) -> tuple[CacheGroup, ...]:
    """Cut the layers into groups of like attention and, as far as they divide, of like size.

    All groups draw on one pool whose blocks have room for the largest group, so equal sizes waste nothing. Layers of
    the rarer kind form one group and the others are dealt into groups of about that size: 15 sliding and 3 full layers
    become five groups and one. Encoders have no cache and no groups.
    """
    if config.encoder is not None:
        return ()
    window = config.sliding_window
    sliding = [i for i, kind in enumerate(config.layer_types) if kind == "sliding_attention" and window is not None]
    full = [i for i in range(config.num_layers) if i not in set(sliding)]
    if window is not None and window >= max_model_len:
        # Such a window hides nothing and gives nothing back.
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
    """Tokens of the longest sequence that a cache holds.

    Args:
        num_blocks: blocks that can be handed out.
        max_chunk: most tokens of one request in a step; a window's blocks outlive the chunk that fills them.
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
    """With windows alone a sequence of any length runs once the windows fit."""
    return 1 << 40 if sum(bounded) <= num_blocks else 0
