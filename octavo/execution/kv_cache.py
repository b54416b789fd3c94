"""Allocates the memory of the key/value cache."""

import contextlib
import math
import mmap

import torch

from octavo.hub.model_config import ModelConfig
from octavo.records import Plan


def allocate_kv_caches(plan: Plan, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Allocate the cache.

    Cache groups share memory: a block belongs to one group at a time, and the i-th layers of all groups share the
    i-th tensor.

    Returns:
        Per layer, ``[2, blocks, Hkv, block_size, D]`` (keys, values), zeroed.
    """
    shape = (2, plan.num_blocks, config.num_kv_heads, plan.block_size, config.head_dim)
    tensors = [_zeros(shape, dtype, device) for _ in range(max(len(group.layers) for group in plan.groups))]
    by_layer = {layer: tensors[index] for group in plan.groups for index, layer in enumerate(group.layers)}
    return [by_layer[layer] for layer in range(config.num_layers)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The system provides zeroed pages on first touch, while torch.zeros writes all of them now. Huge pages save most of
    # the TLB misses of reading scattered blocks.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
