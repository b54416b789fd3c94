"""Allocates the cache: one pool of blocks, and each layer's tensors as views of it."""

from dataclasses import dataclass
from functools import singledispatch

import torch

from octavo.platforms import runtime_of
from octavo.records import Full, Latent, Plan, State
from octavo.records.cache_spec import scales_offset

LayerCache = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class CachePool:
    """The memory of the cache.

    A block belongs to one group at a time, and holds all layers of that group. If all layers are of one size, the
    blocks' parts of a layer lie together: a layer's attention then reads a hundredth of the pages that blocks as wholes
    are spread over, which is 1 to 4 % faster. Otherwise a block is in one piece.

    Attributes:
        blocks: ``[blocks, parts, bytes]`` uint8; one strided copy moves a block.
        layers: the tensors of each cache by its name. Keys and values are ``[2, blocks, Hkv, block_size, D]``, latent
            vectors ``[blocks, block_size, size]``, either followed by its scales, if it has any, which lack the last
            dimension; and each tensor of a state is ``[blocks, places, …]``.
    """

    blocks: torch.Tensor
    layers: dict[str, LayerCache]


def allocate_cache(plan: Plan, device: torch.device) -> CachePool:
    """Allocate the cache, zeroed."""
    part_bytes = _part_bytes(plan)
    shape = plan.block_bytes // part_bytes if part_bytes else 1, plan.num_blocks, part_bytes
    blocks = runtime_of(device).zeros(shape, torch.uint8).transpose(0, 1)
    layers: dict[str, LayerCache] = {}
    for group in plan.groups:
        num_bytes = group.spec.block_bytes(group.block_size, plan.num_places)
        for index, name in enumerate(group.layers):
            part, start = divmod(index * num_bytes, part_bytes)
            own = blocks[:, part, start : start + num_bytes]
            layers[name] = _views(group.spec, own, group.block_size, plan.num_places)
    return CachePool(blocks, layers)


def _part_bytes(plan: Plan) -> int:
    """Bytes of a block's parts: a layer's, if blocks consist of these and these of whole runs of keys; or all."""
    sizes = {group.spec.block_bytes(group.block_size, plan.num_places) for group in plan.groups}
    runs = [group.block_size * group.spec.run_bytes for group in plan.groups if isinstance(group.spec, Full)]
    if len(sizes) != 1 or plan.block_bytes % min(sizes) or any(min(sizes) % run for run in runs):
        return plan.block_bytes
    return min(sizes)


@singledispatch
def _views(spec: object, part: torch.Tensor, block_size: int, num_places: int) -> LayerCache:
    """A layer's tensors.

    Args:
        part: ``[blocks, bytes]`` uint8, the layer's bytes of each block.
    """
    raise TypeError(f"no layout is registered for caches of the kind {type(spec).__name__}")


@_views.register
def _(spec: Full, part: torch.Tensor, block_size: int, num_places: int) -> LayerCache:
    shape = (2, spec.num_kv_heads, block_size, spec.head_dim)
    return tuple(tensor.transpose(0, 1) for tensor in _with_scales(spec, part, shape))


@_views.register
def _(spec: Latent, part: torch.Tensor, block_size: int, num_places: int) -> LayerCache:
    return _with_scales(spec, part, (block_size, spec.size))


@_views.register
def _(spec: State, part: torch.Tensor, block_size: int, num_places: int) -> LayerCache:
    found, start = [], 0
    for tensor in spec.tensors:
        stop = start + tensor.block_bytes(num_places)
        found.append(_shaped(part[:, start:stop], tensor.dtype, (num_places, *tensor.shape)))
        start = stop
    return tuple(found)


def _with_scales(spec: Full | Latent, part: torch.Tensor, shape: tuple[int, ...]) -> LayerCache:
    """Values ``[blocks, *shape]``, and their scales if they have any."""
    values = _shaped(part, spec.dtype, shape)
    if not spec.has_scales:
        return (values,)
    behind = part[:, scales_offset(values[0].nbytes) :]
    return values, _shaped(behind, "float32", shape[:-1])


def _shaped(part: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """``[blocks, bytes] → [blocks, *shape]`` of a type; bytes that are left over are padding."""
    values = part.view(getattr(torch, dtype))
    return values[:, : torch.Size(shape).numel()].unflatten(1, shape)
