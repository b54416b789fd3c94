"""Small cache groups."""

from octavo.records import CacheGroup, CacheSpec, ChunkedLocal, Full, SlidingWindow, State, StateTensor

FULL = Full(1, 1, "float32")
STATE = State((StateTensor((1,), "float32"),))


def sliding(window: int) -> SlidingWindow:
    """Attention to the last tokens."""
    return SlidingWindow(1, 1, "float32", window)


def chunked(chunk: int) -> ChunkedLocal:
    """Attention within chunks."""
    return ChunkedLocal(1, 1, "float32", chunk)


def cache_group(spec: CacheSpec | int | None = None, *, index: int = 0, block_size: int = 4) -> CacheGroup:
    """A group of one layer; a number is a window, a negative one a chunk, None full attention."""
    if not isinstance(spec, CacheSpec):
        spec = FULL if spec is None else sliding(spec) if spec > 0 else chunked(-spec)
    return CacheGroup((f"layer.{index}",), spec, block_size)


def cache_groups(*specs: CacheSpec | int | None, block_size: int = 4) -> tuple[CacheGroup, ...]:
    """Groups of one layer each."""
    return tuple(cache_group(spec, index=index, block_size=block_size) for index, spec in enumerate(specs))
