"""A checkpoint under the names of the transformers library, whose rules rename and rearrange its tensors."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from octavo.errors import UnsupportedModelError
from octavo.models.generic.names import CheckpointConversion, ConvertedTensors
from octavo.models.loading.checkpoint import Checkpoint
from octavo.quantization.slot import Slots, WeightSlot


class ConvertedCheckpoint:
    """See :class:`Checkpoint`.

    Args:
        checkpoint: under its own names.
        wanted: what the model needs.

    Raises:
        UnsupportedModelError: tensors are there that a rule cannot convert.
    """

    path: Path

    def __init__(self, checkpoint: Checkpoint, conversion: CheckpointConversion, wanted: Slots) -> None:
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._conversion = conversion
        self._shapes, self._dtypes = checkpoint.shapes(), checkpoint.dtypes()
        self._tensors = conversion.sort(self._shapes, wanted)
        self._results = [self._on_meta(group) for group in self._tensors.converted]

    def _on_meta(self, group: ConvertedTensors) -> dict[str, torch.Tensor]:
        """Shapes and types of what a group becomes."""
        names = [name for names in group.sources.values() for name in names]
        tensors = {name: torch.empty(self._shapes[name], dtype=self._dtypes[name], device="meta") for name in names}
        try:
            return self._conversion.convert(group, tensors)
        except Exception as error:  # rules of many authors
            raise UnsupportedModelError(
                f"{self.path} holds {names[0]}, which the transformers library's rule for {group.name} does not take: "
                f"{error}"
            ) from error

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors, by the library's names."""
        renamed = {new: self._shapes[name] for new, name in self._tensors.renamed.items()}
        return renamed | {name: tuple(value.shape) for found in self._results for name, value in found.items()}

    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Types of all tensors, likewise."""
        renamed = {new: self._dtypes[name] for new, name in self._tensors.renamed.items()}
        return renamed | {name: value.dtype for found in self._results for name, value in found.items()}

    def raw_types(self) -> Mapping[str, str]:
        """See :meth:`Checkpoint.raw_types`; GGUF files are not converted."""
        return {}

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`. Stacked tensors are read in place, others converted on the device."""
        direct = {name: slots[new] for new, name in self._tensors.renamed.items() if new in slots}
        others = []
        for group, results in zip(self._tensors.converted, self._results, strict=True):
            stacked = _stacked(group, results, self._shapes, slots)
            direct |= stacked
            if not stacked and any(name in slots for name in results):
                others.append(group)
        yield from self._checkpoint.copy_into(direct)
        for group in others:
            yield from self._convert(group, slots)

    def _convert(self, group: ConvertedTensors, slots: Slots) -> Iterator[int]:
        device = next(iter(slots.values()))[0].view.device
        tensors = {
            name: torch.empty(self._shapes[name], dtype=self._dtypes[name], device=device)
            for names in group.sources.values()
            for name in names
        }
        yield from self._checkpoint.copy_into({name: (WeightSlot(tensor),) for name, tensor in tensors.items()})
        for name, tensor in self._conversion.convert(group, tensors).items():
            for slot in slots.get(name, ()):
                slot.fill(tensor)


def _stacked(
    group: ConvertedTensors, results: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], slots: Slots
) -> Slots:
    """Where the tensors of a group go that are only laid one after another, an expert's each; empty if they are not."""
    places = slots.get(group.name, ())
    kinds = [(type(operation).__name__, operation.dim) for operation in group.converter.operations]
    is_stack = kinds in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])
    are_parts = all(not place.is_converted and _are_slices(place) for place in places)
    if not is_stack or not places or not are_parts:
        return {}
    num_experts, num_rows = results[group.name].shape[:2]
    found: Slots = {}
    start = 0
    for pattern in group.converter.source_patterns:
        names = group.sources.get(pattern, [])
        if len(names) != num_experts:
            return {}
        for expert, name in enumerate(names):
            own = (_part_of_expert(place, expert, start, num_rows, shapes[name]) for place in places)
            found[name] = tuple(slot for slot in own if slot is not None)
        start += shapes[names[0]][0]
    return found


def _are_slices(place: WeightSlot) -> bool:
    return all(isinstance(part, slice) for part in place.source_slice)


def _part_of_expert(
    place: WeightSlot, expert: int, start: int, num_rows: int, shape: tuple[int, ...]
) -> WeightSlot | None:
    """Where one expert's tensor goes, whose rows begin at ``start`` of ``num_rows``; None if it does not go here."""
    kept = [part for part in place.source_slice if isinstance(part, slice)]
    _, wanted, columns = (*kept, *[slice(None)] * 3)[:3]
    rows = range(*wanted.indices(num_rows))
    first, stop = max(rows.start, start), min(rows.stop, start + shape[0])
    if first >= stop:
        return None
    view = place.view[expert][first - rows.start : stop - rows.start]
    is_whole = view.shape == shape
    return WeightSlot(view, (shape,), () if is_whole else (slice(first - start, stop - start), columns))
