"""Weights of integers in groups that share a scale: a GGUF file's as they are, or int8, int4 and mxfp4 made at load."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from octavo.kernels import FORMATS, LANES, LinearOp, block_kernels
from octavo.kernels.blocks import BlockKernels
from octavo.quantization.grouped_weight import BlockForm
from octavo.quantization.scheme import LinearScheme, LinearWeights, empty_parameter
from octavo.quantization.slot import Index, WeightPart, WeightSlot

MADE_AT_LOAD = ("int8", "int4", "mxfp4")
"""Formats that weights are rounded to while they are loaded; the others are GGUF's."""


@dataclass(frozen=True, slots=True)
class BlockScheme(LinearScheme):
    """Weights in one of the formats of :data:`octavo.kernels.FORMATS`, packed as they arrive.

    Attributes:
        format: its name.
    """

    format: str
    has_rows: ClassVar[bool] = True

    @property
    def stored_as(self) -> str:
        return self.format

    @property
    def expert_form(self) -> BlockForm:
        return BlockForm.of(self.format)

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        is_aligned = all(size % LANES == 0 for size in part_sizes[:-1])
        return is_aligned and in_features % FORMATS[self.format].unit == 0

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        panels = -(-module.out_features // LANES)
        num_bytes = FORMATS[self.format].panel_bytes(module.in_features)
        module.register_parameter("weight", empty_parameter(panels, num_bytes, dtype=torch.uint8))
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        view = module.weight.data[part.outputs.start // LANES : -(-part.outputs.stop // LANES)]
        yield "weight", self._slot(module, part, view)
        if module.bias is not None:
            yield "bias", part.bias_slot(module.bias.data[part.outputs])

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        weight, shape = module.weight.data, (module.out_features, module.in_features)
        bias = None if module.bias is None else module.bias.data
        return _kernels(weight).linear(weight, self.format, shape, bias, module.compute_dtype), False

    def _slot(self, module: LinearWeights, part: WeightPart, view: torch.Tensor) -> WeightSlot:
        if self.format in MADE_AT_LOAD:
            return replace(part.weight_slot(view), store=quantizer(self.format), row_unit=LANES)
        slot = raw_slot(view, self.format, part.shape, part.source, part.order)
        return replace(slot, row_unit=LANES)


def raw_slot(
    view: torch.Tensor,
    name: str,
    shape: tuple[int, int],
    source: tuple[Index, ...],
    order: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> WeightSlot:
    """The slot of a GGUF tensor that is packed as it is.

    Args:
        shape: of the tensor, ``[out, in]``.
        source: the part that is stored, per dimension; empty for all of it.
        order: reorders its rows.
    """
    num_inputs = shape[1]
    if len(source) == 2:
        outputs, inputs = source
        assert isinstance(inputs, slice), "inputs are divided in order"
        start, stop, _ = inputs.indices(shape[1])
        size, unit = FORMATS[name].raw_bytes
        source, num_inputs = (outputs, slice(start // unit * size, stop // unit * size)), stop - start

    def pack(raw: torch.Tensor, view: torch.Tensor) -> None:
        _kernels(raw).pack(raw, name, num_inputs, view)

    return WeightSlot(view, (shape,), source, order, raw_type=name, store=pack)


def quantizer(name: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Rounds values ``[out, in]`` to one of :data:`MADE_AT_LOAD`, and packs them into a view."""

    def quantize(weight: torch.Tensor, view: torch.Tensor) -> None:
        _kernels(weight).quantize(weight, name, view)

    return quantize


def pack_blocks(raw: torch.Tensor, name: str, in_features: int, out: torch.Tensor) -> None:
    """Store rows of GGUF's blocks, ``[out, bytes]`` uint8, as the device's kernels take them, ``[panels, bytes]``."""
    _kernels(raw).pack(raw, name, in_features, out)


def _kernels(tensor: torch.Tensor) -> BlockKernels:
    """The kernels of a tensor's device."""
    kernels = block_kernels(tensor.device)
    assert kernels is not None, "the scheme is chosen where there are such kernels"
    return kernels
