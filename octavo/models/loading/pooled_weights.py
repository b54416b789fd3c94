"""Maps the weights of checkpoint and module files to a pooling model."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from octavo.layers.weights import CheckpointNames, collect_slots
from octavo.models.base import CausalLM
from octavo.models.loading.checkpoint import Checkpoint
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.models.pooled import PooledModel
from octavo.quantization.slot import Slots

# Ignored tensors: heads for other tasks, with which such models are often saved, and a table that need not be stored.
_UNUSED = re.compile(
    r"(?:\w+\.)?(?:lm_head|cls|pooler|score|classifier|pre_classifier|qa_outputs|linear|head|decoder)\..*"
    r"|vocab_(?:transform|layer_norm|projector)\..*"
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

    def raw_types(self) -> Mapping[str, str]:
        """See :meth:`Checkpoint.raw_types`."""
        return self._checkpoint.raw_types()

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
    for layer in model.pooler.dense_layers:
        own = layer.slots()
        if layer.spec.folder:
            parts.append((SafetensorsCheckpoint(folder / layer.spec.folder), own))
            continue
        if layer.spec.head_rows is not None:
            own = _named_as_modules(checkpoint, own, model)
        # A classifier made of a tied head reads the same tensor as the embedding.
        slots |= {name: slots.get(name, ()) + places for name, places in own.items()}
    return [(WithoutUnused(checkpoint, slots), slots), *parts]


def _named_as_modules(checkpoint: Checkpoint, slots: Slots, model: PooledModel) -> Slots:
    """Slots with the names of modules of a decoder by the names of its family's checkpoints."""
    assert isinstance(model.backbone, CausalLM), "only such a model has a head"
    names = CheckpointNames(model.backbone.checkpoint_names, model.backbone.module_names)
    stored = {names.of(name): places for name, places in slots.items()}
    shapes, prefix = checkpoint.shapes(), model.weight_prefix
    return {name if name in shapes else name.removeprefix(prefix): places for name, places in stored.items()}


def _named_as_in(checkpoint: Checkpoint, slots: Slots, prefix: str) -> Slots:
    """The slots, with the prefix added to or removed from their names to match the checkpoint."""
    plain = {name.removeprefix(prefix): slot for name, slot in slots.items()}
    shapes = checkpoint.shapes()
    if any(name in shapes for name in plain):
        return plain
    return {prefix + name: slot for name, slot in plain.items()}
