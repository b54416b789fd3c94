"""Maps names in a checkpoint to a model's parameters.

A module's attribute names are the checkpoint's names. Only modules whose parameters are stored differently (merged or
quantised linear layers, Gemma's norms) say so, through :class:`HasSlots`.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from octavo.quantization.slot import Slots, WeightSlot


@runtime_checkable
class HasSlots(Protocol):
    """A module that knows which tensors of a checkpoint its own parameters are made of."""

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """Names in the checkpoint and slots.

        Args:
            path: the module's name.
        """
        ...


@runtime_checkable
class Finishable(Protocol):
    """A module that prepares its weights once they are loaded."""

    def finish_weights(self) -> None:
        """Called when all slots are filled: after loading, and after each update of the weights."""
        ...


def collect_slots(model: nn.Module) -> Slots:
    """The destinations of every checkpoint tensor that the model needs; may be called again, to update weights."""
    slots: dict[str, list[WeightSlot]] = {}
    names: Mapping[str, str] = getattr(model, "checkpoint_names", {})
    for path, module in model.named_modules():
        for name, slot in module.weight_slots(path) if isinstance(module, HasSlots) else _own_slots(path, module):
            start = next((start for start in names if name.startswith(start)), "")
            slots.setdefault(names.get(start, "") + name.removeprefix(start), []).append(slot)
    return {name: tuple(found) for name, found in slots.items()}


def finish(model: nn.Module) -> None:
    """Let every module prepare its loaded weights."""
    for module in model.modules():
        if isinstance(module, Finishable):
            module.finish_weights()


def sibling(path: str, name: str) -> str:
    """The name of a module beside the one at ``path``."""
    parent, dot, _ = path.rpartition(".")
    return f"{parent}{dot}{name}"


def _own_slots(path: str, module: nn.Module) -> Iterator[tuple[str, WeightSlot]]:
    for name, parameter in module.named_parameters(path, recurse=False):
        yield name, WeightSlot(parameter.data)
