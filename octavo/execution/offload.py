"""Moves a model's weights to host memory and back (sleep level 1), and computes checksums of them."""

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType

import torch
from torch import nn

from octavo.platforms import runtime_of


class HostWeights:
    """Moves every tensor of a model to host memory, and back.

    The tensors' storages move; the tensor objects, including views, stay in place in the model's layers. Restored
    storages may have other addresses, so anything that depends on addresses, such as captured graphs, must be rebuilt.

    Args:
        model: its device memory is released by the constructor.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parts: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        for storage in _storages(model):
            host = runtime_of(storage.device).empty_host(storage.nbytes(), dtype=torch.uint8)
            host_storage = host.untyped_storage()
            host_storage.copy_(storage)
            self._parts.append((storage, host_storage))
        for storage, _ in self._parts:
            storage.resize_(0)

    @property
    def num_bytes(self) -> int:
        """Host memory used by the weights."""
        return sum(host.nbytes() for _, host in self._parts)

    def restore(self) -> None:
        """Move the weights back to the device; this object must not be used afterwards."""
        for storage, host in self._parts:
            storage.resize_(host.nbytes())
            storage.copy_(host)
        self._parts.clear()


def checksums(model: nn.Module) -> dict[str, str]:
    """A checksum of every tensor of a model, keyed by module path and attribute."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        attributes = {**vars(module), **module._parameters, **module._buffers}
        for name, value in attributes.items():
            if name.startswith("_"):
                continue
            new = [tensor for tensor in tensors_within(value) if tensor.numel() and id(tensor) not in seen]
            seen.update(map(id, new))
            for index, tensor in enumerate(new):
                found[f"{path}.{name}".lstrip(".") + (f".{index}" if index else "")] = checksum(tensor)
    return found


def checksum(tensor: torch.Tensor) -> str:
    """A 64-bit checksum of the tensor's bytes as sixteen hexadecimal digits."""
    plain = tensor.to_dense() if tensor.is_mkldnn else tensor
    data = plain.detach().contiguous().view(torch.uint8).reshape(-1)
    padded = torch.nn.functional.pad(data, (0, -len(data) % 4)).view(torch.int32).long()
    # Sums wrap around at 64 bits; odd factors make them depend on the order.
    factors = torch.arange(len(padded), device=padded.device, dtype=torch.int64) * 2654435761 * 2 + 1
    return f"{int((padded * factors).sum()) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _storages(model: nn.Module) -> Iterator[torch.UntypedStorage]:
    """Each storage of the model's tensors, once."""
    found: set[int] = set()
    for tensor in tensors_within(model):
        if tensor.layout is not torch.strided or tensor.is_mkldnn:
            continue
        storage = tensor.untyped_storage()
        # Storages that torch did not allocate, such as mapped files, use no device memory.
        if storage.resizable() and storage.nbytes() and storage.data_ptr() not in found:
            found.add(storage.data_ptr())
            yield storage


def tensors_within(root: object) -> Iterator[torch.Tensor]:
    """Every tensor reachable from a model or a part of one, whatever containers its layers use."""
    seen: set[int] = set()
    stack: list[object] = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, FunctionType):
            # Skip globals: everything is reachable from them.
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
        elif gc.is_tracked(item):
            stack += gc.get_referents(item)
