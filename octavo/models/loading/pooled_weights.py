"""Maps the weights of checkpoint and module files to a pooling model."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from octavo.layers.weights import collect_slots
from octavo.models.loading.checkpoint import Checkpoint
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.models.pooled import PooledModel
from octavo.quantization.slot import Slots

# Ignored tensors: heads for other tasks, with which such models are often saved, and a table that need not be stored.
_UNUSED = re.compile(
    r"(?:bert\.|roberta\.)?(?:lm_head|cls|pooler|score|classifier|qa_outputs|linear)\..*"
    r"|(?:.*\.)?embeddings\.(?:position_ids|token_type_ids)"
)


class WithoutUnused:
    """A :class:`Checkpoint` without the heads that the model does not have."""

    def __init__(self, checkpoint: Checkpoint, slots: Slots) -> None:
        self.path = checkpoint.path
        self._checkpoint = checkpoint
        self._slots = slots

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the remaining tensors."""
        shapes = self._checkpoint.shapes()
        return {name: shape for name, shape in shapes.items() if name in self._slots or not _UNUSED.fullmatch(name)}

    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Types of all tensors."""
        return self._checkpoint.dtypes()

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`."""
        return self._checkpoint.copy_into(slots)


def checkpoint_parts(model: PooledModel, checkpoint: Checkpoint, folder: Path) -> list[tuple[Checkpoint, Slots]]:
    """The checkpoints that fill the model, each with the names and destinations of its tensors.

    Args:
        checkpoint: the model's own checkpoint.
        folder: the model's folder, with subfolders of its modules.

    Raises:
        WeightsError: a module's file is missing or corrupted.
    """
    slots = _named_as_in(checkpoint, collect_slots(model.backbone), model.weight_prefix)
    parts: list[tuple[Checkpoint, Slots]] = []
    for spec, layer in zip(model.pooler.spec.dense, model.pooler.dense, strict=True):
        own = {f"{spec.name}.{name}": slot for name, slot in collect_slots(layer).items()}
        if spec.folder:
            parts.append((SafetensorsCheckpoint(folder / spec.folder), own))
        else:
            slots |= own
    return [(WithoutUnused(checkpoint, slots), slots), *parts]


def _named_as_in(checkpoint: Checkpoint, slots: Slots, prefix: str) -> Slots:
    """The slots, with the prefix added to or removed from their names to match the checkpoint."""
    plain = {name.removeprefix(prefix): slot for name, slot in slots.items()}
    shapes = checkpoint.shapes()
    if any(name in shapes for name in plain):
        return plain
    return {prefix + name: slot for name, slot in plain.items()}
