"""Gives memory to what is left of the library's parameters and buffers."""

import re
from collections.abc import Iterable

import torch
from torch import nn


def allocate(base: nn.Module, float32_names: Iterable[str]) -> nn.Module:
    """Make a model's own parameters on torch's default device; returns it.

    Buffers that checkpoints have become parameters, so that loaders find them. The others keep their values.

    Args:
        float32_names: parts of names of parameters that are float32 whatever the compute type.
    """
    place = torch.empty(0).device
    wide = re.compile("|".join(float32_names) or "(?!)")
    made: dict[int, nn.Parameter] = {}

    def empty(path: str, tensor: torch.Tensor) -> nn.Parameter:
        if id(tensor) not in made:
            dtype = torch.float32 if wide.search(path) else tensor.dtype
            made[id(tensor)] = nn.Parameter(torch.empty(tensor.shape, dtype=dtype, device=place), requires_grad=False)
        return made[id(tensor)]

    for path, module in base.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                module.register_parameter(name, empty(f"{path}.{name}", parameter))
        for name, buffer in list(module._buffers.items()):
            if buffer is None:
                continue
            if name in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(place)
            else:
                del module._buffers[name]
                module.register_parameter(name, empty(f"{path}.{name}", buffer))
    return base
