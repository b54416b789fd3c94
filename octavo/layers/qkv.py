"""Orders in which checkpoints store the projections of queries, keys and values as one layer."""

from collections.abc import Callable

import torch

QKVOrder = Callable[[int, int, int], torch.Tensor]
"""Heads, key/value heads, size of each → for each output, all queries before all keys before all values, which of the
checkpoint's it is: ``[(heads + 2 · kv_heads) · head_dim]`` int64 on the CPU."""

_NUM_SHARDS = 4


def by_head(heads: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    """Each key/value head's queries, then its key and its value (Megatron-LM)."""
    members = heads // kv_heads
    rows = _rows(kv_heads, members + 2, head_dim)
    return torch.cat((rows[:, :members].flatten(), rows[:, members].flatten(), rows[:, members + 1].flatten()))


def by_shard(heads: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    """In four parts, each with queries, values and keys of a quarter of the heads (CodeGen, as it was trained)."""
    queries, values, keys = _rows(_NUM_SHARDS, 3, heads // _NUM_SHARDS * head_dim).unbind(1)
    return torch.cat((queries.flatten(), keys.flatten(), values.flatten()))


def _rows(*shape: int) -> torch.Tensor:
    """The numbers of a checkpoint's outputs, in a shape."""
    return torch.arange(torch.Size(shape).numel(), device="cpu").view(shape)
