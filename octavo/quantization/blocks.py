"""Weights of integers in groups that share a scale: a GGUF file's as they are, or int8 and int4 made at load."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from octavo.kernels import FORMATS, LANES, LinearOp, block_kernels
from octavo.kernels.blocks import BlockKernels
from octavo.quantization.scheme import LinearScheme, LinearWeights, empty_parameter
from octavo.quantization.slot import Index, WeightPart, WeightSlot

MADE_AT_LOAD = ("int8", "int4")
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
            return replace(part.weight_slot(view), store=_quantize(self.format), row_unit=LANES)
        return WeightSlot(
            view,
            (part.shape,),
            self._raw_slice(part),
            part.order,
            raw_type=self.format,
            store=_pack(self.format, module.in_features),
            row_unit=LANES,
        )

    def _raw_slice(self, part: WeightPart) -> tuple[Index, ...]:
        """The part of a file's rows of bytes that holds a part of the weight."""
        if len(part.source) < 2:
            return part.source
        outputs, inputs = part.source
        assert isinstance(inputs, slice), "inputs are divided in order"
        size, unit = FORMATS[self.format].raw_bytes
        return outputs, slice(inputs.start // unit * size, inputs.stop // unit * size)


def _quantize(name: str) -> Callable[[torch.Tensor, torch.Tensor], object]:
    return lambda weight, view: _kernels(weight).quantize(weight, name, view)


def _pack(name: str, in_features: int) -> Callable[[torch.Tensor, torch.Tensor], object]:
    return lambda raw, view: _kernels(raw).pack(raw, name, in_features, view)


def pack_blocks(raw: torch.Tensor, name: str, in_features: int) -> torch.Tensor:
    """Rows of GGUF's blocks, ``[out, bytes]`` uint8, as the device's kernels take them, ``[panels, bytes]``."""
    return _kernels(raw).pack(raw, name, in_features)


def _kernels(tensor: torch.Tensor) -> BlockKernels:
    """The kernels of a tensor's device."""
    kernels = block_kernels(tensor.device)
    assert kernels is not None, "the scheme is chosen where there are such kernels"
    return kernels
