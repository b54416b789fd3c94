"""Allocates the memory of the key/value cache."""

import torch

from octavo.hub.model_config import ModelConfig
from octavo.platforms import runtime_of
from octavo.records import Plan


def allocate_kv_caches(plan: Plan, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Allocate the cache.

    Cache groups share memory: a block belongs to one group at a time, and the i-th layers of all groups share the
    i-th tensor.

    Returns:
        Per layer, ``[2, blocks, Hkv, block_size, D]`` (keys, values), zeroed.
    """
    shape = (2, plan.num_blocks, config.num_kv_heads, plan.block_size, config.head_dim)
    runtime = runtime_of(device)
    tensors = [runtime.zeros(shape, dtype) for _ in range(max(len(group.layers) for group in plan.groups))]
    by_layer = {layer: tensors[index] for group in plan.groups for index, layer in enumerate(group.layers)}
    return [by_layer[layer] for layer in range(config.num_layers)]
