"""The interface of checkpoints of all formats, and the check that one fits the model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch

from octavo.errors import WeightsError
from octavo.quantization.slot import Slots

_SHOWN = 5
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")
# Static scales of activations and of the cache: activations get a scale per token, and the cache is not quantised.
_UNUSED_SCALES = (".input_scale", ".k_scale", ".v_scale")


class Checkpoint(Protocol):
    """Named tensors in files.

    Attributes:
        path: the checkpoint's folder or file.
    """

    path: Path

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors, by the names that Hugging Face's checkpoints use."""
        ...

    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Types of all tensors, by the same names; float32 for formats that are dequantised when they are read."""
        ...

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """Fill slots, converting type and device; yields the number of elements read since the last yield.

        Args:
            slots: of tensors that :func:`check_fit` accepts.

        Raises:
            WeightsError: a file is truncated or cannot be read.
            UnsupportedModelError: a tensor has a storage format that is not supported.
        """
        ...


def check_fit(slots: Slots, checkpoint: Checkpoint, *, is_tied: bool) -> None:
    """Check, before anything is copied, that a checkpoint has exactly the tensors that the model needs.

    Args:
        slots: all that the model needs.
        is_tied: the head shares the embedding; a head in the checkpoint is ignored.

    Raises:
        WeightsError: names the tensors that are missing, unexpected, mis-shaped or quantised in another way.
    """
    shapes, dtypes = checkpoint.shapes(), checkpoint.dtypes()
    missing = [name for name in slots if name not in shapes]
    unexpected = [name for name in shapes if name not in slots and not _is_harmless(name, is_tied)]
    present = [(name, slot) for name, places in slots.items() if name in shapes for slot in places]
    misshaped = [
        f"{name} is {list(shapes[name])}, the configuration wants {list(slot.source_shapes[0])}"
        for name, slot in present
        if tuple(shapes[name]) not in slot.source_shapes
    ]
    mistyped = [
        f"{name} is {str(dtypes[name]).removeprefix('torch.')}"
        for name, slot in present
        if not slot.takes(dtypes[name])
    ]
    complaints = [
        _complaint("missing", missing),
        _complaint("unexpected", unexpected),
        _complaint("of the wrong shape", misshaped),
        _complaint("quantised in another way than the configuration says", mistyped),
    ]
    if any(complaints):
        raise WeightsError(
            f"The weights in {checkpoint.path} do not fit the model: {'; '.join(filter(None, complaints))}."
        )


def _is_harmless(name: str, is_tied: bool) -> bool:
    return name.endswith((*_IGNORED_SUFFIXES, *_UNUSED_SCALES)) or (is_tied and name == "lm_head.weight")


def _complaint(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"
