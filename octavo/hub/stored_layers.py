"""Which layers of a checkpoint are quantised, by the names of their tensors.

Configurations of quantised checkpoints need not list the layers that were left as they are, and say little of heads.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.json_file import read_json
from octavo.hub.safetensors_json import read_tensor_entries

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_WEIGHT, _BIAS = ".weight", ".bias"
_EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class StoredLayers:
    """Layers by their names in the checkpoint.

    Attributes:
        unquantized: layers that have a weight, and nothing else but a bias; tensors of all experts' values; and modules
            of experts some of which have such layers.
        quantized_ends: layers with other tensors that are in none of the numbered layers: head and embedding.
    """

    unquantized: frozenset[str] = frozenset()
    quantized_ends: frozenset[str] = frozenset()


def stored_layers(folder: Path) -> StoredLayers:
    """The layers in a folder.

    None if no layer is quantised, or there are no files, or they cannot be read: loading says what is wrong then.
    """
    weights, others = set(), set()
    names = set(_tensor_names(folder))
    for name in names:
        if name.endswith(_WEIGHT):
            weights.add(name.removesuffix(_WEIGHT))
        elif not name.endswith(_BIAS):
            layer, inner, _ = name.partition(f"{_WEIGHT}.")  # such as "weight.absmax"
            others.add(layer if inner else name.rpartition(".")[0])
    ends = frozenset(layer for layer in others if not any(part.isdigit() for part in layer.split(".")))
    unquantized = weights - others
    found = unquantized | _stacked_values(names) | _modules_of_experts(unquantized)
    return StoredLayers(frozenset(found), ends) if others else StoredLayers()


def _stacked_values(names: Iterable[str]) -> set[str]:
    """Tensors of all experts, without scales or codes whose names begin with theirs."""
    stacked = {name for name in names if not name.endswith((_WEIGHT, _BIAS)) and _is_of_all(name)}
    extended = {
        name[:end] for name in stacked if not name.endswith("_bias") for end, char in enumerate(name) if char == "_"
    }
    return stacked - extended


def _is_of_all(name: str) -> bool:
    _, inner, own = name.partition(_EXPERTS)
    return bool(inner) and not own[0].isdigit()


def _modules_of_experts(layers: Iterable[str]) -> set[str]:
    """Modules around layers of single experts."""
    return {
        layer.partition(_EXPERTS)[0] + _EXPERTS[:-1] for layer in layers if _EXPERTS in layer and not _is_of_all(layer)
    }


def _tensor_names(folder: Path) -> Iterable[str]:
    if not (folder / _SINGLE).is_file() and (folder / _INDEX).is_file():
        try:
            found = read_json(folder / _INDEX).get("weight_map")
        except UnsupportedModelError:
            return ()
        return found if isinstance(found, dict) else ()
    single = [folder / _SINGLE] if (folder / _SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    return [name for path in single for name in _names_in(path)]


def _names_in(path: Path) -> Iterable[str]:
    try:
        return read_tensor_entries(path)[0]
    except WeightsError:
        return ()
