"""What checkpoints call the tensors of a model of the transformers library, and how they become its own.

The library renames and rearranges the tensors of older checkpoints while it loads them (an expert each → all stacked);
its rules are applied here to names and, by :mod:`octavo.models.loading.converted`, to tensors.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key


@dataclass(slots=True)
class ConvertedTensors:
    """Tensors of the checkpoint that become others.

    Attributes:
        name: the library's name of the first result.
        sources: by the converter's pattern, the names in the checkpoint, in order.
        converter: the library's rule.
    """

    name: str
    sources: dict[str, list[str]]
    converter: Any


@dataclass(slots=True)
class NamedTensors:
    """A checkpoint's names, sorted out.

    Attributes:
        renamed: the library's name → that in the checkpoint, for tensors that are taken as they are.
        converted: those that are not.
    """

    renamed: dict[str, str] = field(default_factory=dict)
    converted: list[ConvertedTensors] = field(default_factory=list)


class CheckpointConversion:
    """The library's rules for one model's checkpoints.

    Args:
        model: with the library's own modules, without memory.
    """

    def __init__(self, model: Any) -> None:
        rules = get_model_conversion_mapping(model)
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._config = model.config
        self._shapes = _Shapes({name: tensor.shape for name, tensor in model.state_dict().items()})
        self._ignored = re.compile("|".join(model._keys_to_ignore_on_load_unexpected) or "(?!)")
        self._tied = frozenset(model.all_tied_weights_keys)

    def sort(self, names: Iterable[str], wanted: Iterable[str]) -> NamedTensors:
        """What becomes of a checkpoint's tensors.

        Args:
            names: in the checkpoint.
            wanted: names of the tensors that the model needs, the library's and those of quantised layers.
        """
        known = dict.fromkeys((*self._shapes.shapes, *wanted), True)
        by_pattern = {pattern: rule for rule in self._converters for pattern in rule.source_patterns}
        sorted_out = NamedTensors()
        groups: dict[str, ConvertedTensors] = {}
        for name in sorted(names, key=dot_natural_key):
            new, pattern = self._renamed(name, known)
            if pattern is not None and new in known:
                if new not in groups:
                    groups[new] = ConvertedTensors(new, {}, by_pattern[pattern])
                groups[new].sources.setdefault(pattern, []).append(name)
            elif new not in self._tied and (new in known or not self._ignored.search(new)):
                sorted_out.renamed[new] = name
        sorted_out.converted = list(groups.values())
        return sorted_out

    def _renamed(self, name: str, known: Mapping[str, Any]) -> tuple[str, str | None]:
        options = {"base_model_prefix": self._prefix, "meta_state_dict": known}
        new, pattern = rename_source_key(name, self._renamings, self._converters, **options)
        if new not in known and name in known:
            return rename_source_key(name, [], [], **options)
        return new, pattern

    def convert(self, group: ConvertedTensors, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The library's tensors that a group of the checkpoint's becomes, by name.

        Args:
            tensors: the group's sources by their names in the checkpoint; of the meta device for shapes alone.
        """
        rule = copy.deepcopy(group.converter)
        for pattern, names in group.sources.items():
            for name in names:
                rule.add_tensor(group.name, name, pattern, tensors[name])
        found = rule.convert(group.name, model=self._shapes, config=self._config)
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


class _Shapes:
    """Stands in for a model where rules ask for the shape of a parameter."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = shapes

    def get_parameter(self, name: str) -> torch.Tensor:
        """A tensor of the parameter's shape, without values."""
        return torch.empty(self.shapes[name], device="meta")
