"""What a model's weights take, by what they are for and how they are stored, and what of them a token reads."""

from collections.abc import Iterator

from torch import nn

from octavo.layers.context import CachedLayer
from octavo.layers.embedding import Embedding, Head, PositionEmbedding
from octavo.layers.experts import Experts
from octavo.layers.moe import SparseMLP
from octavo.quantization.scheme import LinearWeights
from octavo.records import WeightGroup

_ATTENTION = "attention"


def weight_groups(model: nn.Module, *, is_tied: bool) -> tuple[WeightGroup, ...]:
    """The weights of a model that was built on the meta device, the largest group first.

    Args:
        is_tied: whether the first embedding is the head's weight as well, so that each step reads it.
    """
    shares = {
        id(layer.experts): layer.gate.routing.num_chosen / layer.gate.routing.num_experts
        for layer in model.modules()
        if isinstance(layer, SparseMLP)
    }
    tied = next((module for module in model.modules() if isinstance(module, Embedding)), None) if is_tied else None
    found: dict[tuple[str, str], list[int]] = {}
    counted: set[int] = set()
    for purpose, module in _purposes(model):
        read = shares.get(id(module), float(purpose != "embeddings" or module is tied))
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.numel() == 0 or id(parameter) in counted:
                continue
            counted.add(id(parameter))
            stored = "" if name.endswith("bias") else _format(module)
            group = found.setdefault((purpose, stored or str(parameter.dtype).removeprefix("torch.")), [0, 0])
            group[0] += parameter.nbytes
            group[1] += round(parameter.nbytes * read)
    groups = [WeightGroup(*key, *sizes) for key, sizes in found.items()]
    return tuple(sorted(groups, key=lambda group: -group.num_bytes))


def _format(module: nn.Module) -> str:
    """How a module's weights are stored; empty for their type."""
    if isinstance(module, Experts):
        return module.stored_as
    return module.scheme.stored_as if isinstance(module, LinearWeights) else ""


def _purposes(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each module, and what its own parameters are for."""
    # Layers that mix tokens have their weights themselves, or are parts of modules that have them.
    owners = tuple(
        f"{name if next(module.parameters(), None) is not None else name.rpartition('.')[0]}."
        for name, module in model.named_modules()
        if isinstance(module, CachedLayer)
    )
    for name, module in model.named_modules():
        if isinstance(module, (Embedding, PositionEmbedding)):
            yield "embeddings", module
        elif isinstance(module, Head):
            yield "head", module
        elif isinstance(module, Experts):
            yield "experts", module
        elif f"{name}.".startswith(owners):
            yield _ATTENTION, module
        else:
            yield "feed-forward" if isinstance(module, LinearWeights) else "norms and others", module
