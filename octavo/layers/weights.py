"""Maps names in a checkpoint to a model's parameters.

A module's attribute names are the checkpoint's names. Only modules whose parameters are stored differently (merged or
quantised linear layers, Gemma's norms) say so, through :class:`HasSlots`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from torch import nn

from octavo.quantization.slot import Slots, WeightSlot


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """What checkpoints call a model's modules where it is not their attribute's name.

    Attributes:
        starts: beginnings of names → what checkpoints have in their place; the first that fits counts.
        modules: names of modules, wherever they are in the model → what checkpoints call them; an empty name where they
            leave the module out. A name may be that of a module inside another, which goes before the names of both.
    """

    starts: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The checkpoint's name of a module or a parameter."""
        start = next((start for start in self.starts if name.startswith(start)), "")
        return self.starts.get(start, "") + ".".join(self._parts(name.removeprefix(start).split(".")))

    def of_module(self, name: str) -> str:
        """The checkpoint's name of a module, also where its name is all of a beginning."""
        return self.of(f"{name}.").removesuffix(".")

    def _parts(self, parts: list[str]) -> Iterator[str]:
        own = iter(zip(parts, [*parts[1:], ""], strict=True))
        for part, inner in own:
            pair = self.modules.get(f"{part}.{inner}")
            if pair is not None:
                next(own)
            found = self.modules.get(part, part) if pair is None else pair
            if found or not part:
                yield found


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
class FitsForms(Protocol):
    """A module whose weights have one of several forms in checkpoints."""

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """Take the form that a checkpoint has; called before the slots are collected that it fills.

        Args:
            path: the module's name.
            has: whether the checkpoint has a tensor of a name.
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
    names = _checkpoint_names(model)
    for path, module in model.named_modules():
        has_slots = _implements(type(module), HasSlots)
        for name, slot in cast(HasSlots, module).weight_slots(path) if has_slots else _own_slots(path, module):
            slots.setdefault(names.of(name), []).append(slot)
    return {name: tuple(found) for name, found in slots.items()}


def fit_forms(model: nn.Module, has: Callable[[str], bool]) -> None:
    """Let every module take the form of its weights in a checkpoint.

    Args:
        has: whether the checkpoint has a tensor of a name.
    """
    names = _checkpoint_names(model)
    for path, module in model.named_modules():
        if _implements(type(module), FitsForms):
            cast(FitsForms, module).fit(path, lambda name: has(names.of(name)))


def finish(model: nn.Module) -> None:
    """Let every module prepare its loaded weights."""
    for module in model.modules():
        if _implements(type(module), Finishable):
            cast(Finishable, module).finish_weights()


_known: dict[tuple[type, type], bool] = {}


def _implements(kind: type, protocol: type) -> bool:
    """Whether modules of a class have a protocol's methods; asking hundreds of modules takes 50 ms of a start."""
    found = _known.get((kind, protocol))
    if found is None:
        found = _known[kind, protocol] = issubclass(kind, protocol)
    return found


def _checkpoint_names(model: nn.Module) -> CheckpointNames:
    return CheckpointNames(getattr(model, "checkpoint_names", {}), getattr(model, "module_names", {}))


def sibling(path: str, name: str) -> str:
    """The name of a module beside the one at ``path``."""
    parent, dot, _ = path.rpartition(".")
    return f"{parent}{dot}{name}"


def _own_slots(path: str, module: nn.Module) -> Iterator[tuple[str, WeightSlot]]:
    for name, parameter in module.named_parameters(path, recurse=False):
        yield name, WeightSlot(parameter.data)
