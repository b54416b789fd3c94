"""The interface of checkpoints of all formats, and the check that one fits the model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch

from octavo.errors import WeightsError
from octavo.quantization.slot import Slots, WeightSlot

_SHOWN = 5
_IGNORED_SUFFIXES = (
    ".rotary_emb.inv_freq",
    *(f".{module}.{mask}" for module in ("attn", "attention") for mask in ("bias", "masked_bias", "causal_mask")),
)
# Static scales of activations, which get a scale per token or are not rounded, of outputs, queries and attention
# weights, which are not rounded, and of a cache that is not quantised with them. Zeros of weights that have none by
# their configuration. GPTQ's writers store the groups of inputs, and biases of zeros, of layers that have no such
# thing; bitsandbytes a number for the order of INT8 weights, of which one is left.
_UNUSED_SCALES = (
    *(".input_scale", ".activation_scale", "_proj_input_scale", ".input_scale_2", ".input_scale_ub"),
    ".input_global_scale",
    *(".input_zero_point", ".weight_zero_point", "._weight_zero_point", ".g_idx", ".weight_format"),
    *(".q_scale", ".k_scale", ".v_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point"),
    *(".output_scale", ".prob_output_scale", ".prob_scale"),
)
_GPTQ_WEIGHT, _BIAS = ".qweight", ".bias"


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

    def raw_types(self) -> Mapping[str, str]:
        """GGUF's types of the tensors of a GGUF file, by the same names; empty for other formats."""
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


def without_prefix(slots: Slots, checkpoint: Checkpoint, prefix: str) -> Slots:
    """The slots by the names of a checkpoint that may have been made of the model without its head.

    Args:
        prefix: beginning of names that such checkpoints lack.
    """
    shapes = checkpoint.shapes()
    is_without = any(name.startswith(prefix) and name.removeprefix(prefix) in shapes for name in slots)
    return {name.removeprefix(prefix): places for name, places in slots.items()} if is_without else slots


def with_found_names(slots: Slots, checkpoint: Checkpoint) -> Slots:
    """The slots by the names that a checkpoint has of each slot's; slots that it may lack and does are left out."""
    shapes = checkpoint.shapes()
    found: dict[str, tuple[WeightSlot, ...]] = {}
    for name, places in slots.items():
        parent = name.rpartition(".")[0]
        names = [name, *(f"{parent}.{other}" for other in places[0].alternatives)]
        named = next((each for each in names if each in shapes), None)
        if named is not None or not places[0].is_optional:
            found[named or name] = found.get(named or name, ()) + places
    return found


def check_fit(slots: Slots, checkpoint: Checkpoint, *, is_tied: bool, unused: tuple[str, ...] = ()) -> None:
    """Check, before anything is copied, that a checkpoint has exactly the tensors that the model needs.

    Args:
        slots: all that the model needs.
        is_tied: the head shares the embedding; a head in the checkpoint is ignored.
        unused: beginnings of names of tensors that are ignored.

    Raises:
        WeightsError: names the tensors that are missing, unexpected, mis-shaped or quantised in another way.
    """
    shapes, dtypes, raw_types = checkpoint.shapes(), checkpoint.dtypes(), checkpoint.raw_types()
    missing = [name for name in slots if name not in shapes]
    unexpected = [
        name for name in shapes if not (name in slots or name.startswith(unused) or _is_harmless(name, slots, is_tied))
    ]
    present = [(name, slot) for name, places in slots.items() if name in shapes for slot in places]
    misshaped = [
        f"{name} is {list(shapes[name])}, the configuration wants {list(slot.source_shapes[0])}"
        for name, slot in present
        if not slot.accepts(tuple(shapes[name]))
    ]
    mistyped = [
        f"{name} is {raw_types.get(name) or str(dtypes[name]).removeprefix('torch.')}"
        for name, slot in present
        if not slot.takes(dtypes[name], raw_types.get(name, ""))
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


def _is_harmless(name: str, slots: Slots, is_tied: bool) -> bool:
    if name.endswith(_BIAS) and name.removesuffix(_BIAS) + _GPTQ_WEIGHT in slots:
        return True
    return name.endswith((*_IGNORED_SUFFIXES, *_UNUSED_SCALES)) or (is_tied and name == "lm_head.weight")


def _complaint(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"
