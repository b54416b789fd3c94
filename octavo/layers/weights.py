"""Maps names in a checkpoint to a model's parameters.

A module's attribute names are the checkpoint's names. Only modules that merge several checkpoint
tensors into one (``qkv_proj``, ``gate_up_proj``) declare so, through :class:`MergedWeights`.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class MergedWeights(Protocol):
    """A module whose parameters contain several checkpoint tensors, concatenated along dimension 0."""

    def parts(self) -> dict[str, tuple[int, int]]:
        """Checkpoint module name (a sibling of this one) → first row and number of rows."""
        ...


@runtime_checkable
class Finalizable(Protocol):
    """A module that rearranges its weights once they are loaded."""

    def finalize_weights(self) -> None:
        """Called once, after loading."""
        ...


def collect_slots(model: nn.Module) -> dict[str, torch.Tensor]:
    """The destination of every checkpoint tensor that the model needs.

    Returns:
        Name → a view into a parameter, of the required shape, type and device.
    """
    slots: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            slots.update(_slots_of(path, name.rpartition(".")[2], module, parameter.data))
    return slots


def finalize(model: nn.Module) -> None:
    """Let every module rearrange its loaded weights."""
    for module in model.modules():
        if isinstance(module, Finalizable):
            module.finalize_weights()


def _slots_of(path: str, leaf: str, module: nn.Module, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(module, MergedWeights):
        yield f"{path}.{leaf}" if path else leaf, tensor
        return
    parent = path.rpartition(".")[0]
    for part, (start, count) in module.parts().items():
        yield f"{parent}.{part}.{leaf}" if parent else f"{part}.{leaf}", tensor[start : start + count]
