"""Where the weights of all experts of a layer are stored for one of its GEMMs: as values, packed, or as blocks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from octavo.kernels import FLOAT8, FORMATS, LANES
from octavo.kernels.block_experts import BlockMatrices
from octavo.kernels.float4 import exponents_of, round_to_nvfp4
from octavo.kernels.grouped import ROUNDED_AT_ONCE, ZERO_STEP, Rounding, round_rows
from octavo.kernels.packed_experts import UNIT, PackedMatrices, pack_units
from octavo.kernels.scaled import quantize_rows
from octavo.quantization.bit_packing import unpack_bits
from octavo.quantization.blocks import MADE_AT_LOAD, quantizer, raw_slot
from octavo.quantization.grouped_weight import BlockForm, ExpertForm, GroupedForm, GroupedWeight, PackedForms
from octavo.quantization.scheme import empty_parameter
from octavo.quantization.slot import Index, WeightPart, WeightSlot
from octavo.quantization.stored import store_blocks

_ROWS_OF_TENSOR_CORES = 8
_FLOAT8_UNIT = 16

Experts = int | slice
"""One expert, or some of them."""


class ExpertMatrix(ABC):
    """A weight ``[out, in]`` of each expert.

    Attributes:
        parameters: what is stored, by the end of its name: empty for the values or codes.
    """

    parameters: dict[str, nn.Parameter]

    @property
    def stored_as(self) -> str:
        """The format, for the plan; empty for the compute type."""
        return ""

    @abstractmethod
    def slot(
        self,
        experts: Experts,
        rows: slice,
        shapes: tuple[tuple[int, ...], ...],
        source: tuple[Index, ...],
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> WeightSlot:
        """The slot of a tensor of values, of which some are stored as these outputs; see :class:`WeightSlot`."""

    @abstractmethod
    def view(self, experts: Experts, rows: slice) -> torch.Tensor:
        """The memory of these outputs' values or codes."""

    @abstractmethod
    def store(self, expert: int, rows: slice, weight: GroupedWeight, source: tuple[Index, ...]) -> None:
        """Store a part of a checkpoint's layer, empty for all of it, as these outputs."""


class PlainMatrix(ExpertMatrix):
    """Values in the compute type, ``[E, out, in]``."""

    def __init__(self, num_experts: int, num_outputs: int, num_inputs: int) -> None:
        self.parameters = {"": empty_parameter(num_experts, num_outputs, num_inputs)}

    def slot(
        self,
        experts: Experts,
        rows: slice,
        shapes: tuple[tuple[int, ...], ...],
        source: tuple[Index, ...],
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> WeightSlot:
        return WeightSlot(self.view(experts, rows), shapes, source, transform)

    def view(self, experts: Experts, rows: slice) -> torch.Tensor:
        return self.parameters[""].data[experts][..., rows, :]

    def store(self, expert: int, rows: slice, weight: GroupedWeight, source: tuple[Index, ...]) -> None:
        self.view(expert, rows).copy_(weight.values()[source])


class PackedMatrix(ExpertMatrix):
    """Codes, scales, and zeros or offsets; see :class:`octavo.kernels.packed_experts.PackedMatrices`.

    Args:
        form: what they are.
        inputs: those that are stored of ``in_features``; their groups may be parts of the form's.
    """

    def __init__(self, form: GroupedForm, num_experts: int, num_outputs: int, inputs: range, in_features: int) -> None:
        assert packs(form, num_outputs, in_features), "the form is chosen for sizes that suit"
        self._form = form
        self._group = own_group(form, inputs, in_features)
        groups = num_experts, len(inputs) // self._group, num_outputs
        is_float8 = form.kind == "float8"
        codes = empty_parameter(
            num_experts, num_outputs, len(inputs) * form.bits // 8, dtype=FLOAT8 if is_float8 else torch.uint8
        )
        scale_type = {"mxfp4": torch.uint8, "nvfp4": FLOAT8}.get(form.kind, torch.float32)
        self.parameters = {"": codes, "_scales": empty_parameter(*groups, dtype=scale_type)}
        if form.has_offsets:
            self.parameters["_offsets"] = empty_parameter(*groups, dtype=torch.float16)
        elif form.has_zeros:
            self.parameters["_zeros"] = empty_parameter(*groups, dtype=torch.uint8)
        if form.kind == "nvfp4":
            self.parameters["_factors"] = empty_parameter(num_experts, num_outputs, dtype=torch.float32)

    @property
    def stored_as(self) -> str:
        return format_name(self._form)

    @property
    def rounds_inputs(self) -> bool:
        """Whether the weights were made for float8 activations."""
        return self._form.kind == "float8" and self._form.rounds_inputs

    @property
    def tensors(self) -> PackedMatrices:
        """What kernels take."""
        own = {end: parameter.data for end, parameter in self.parameters.items()}
        optional = (own.get("_offsets"), own.get("_factors"))
        return PackedMatrices(own[""], own["_scales"], own.get("_zeros"), self._form.bits, *optional)

    def slot(
        self,
        experts: Experts,
        rows: slice,
        shapes: tuple[tuple[int, ...], ...],
        source: tuple[Index, ...],
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> WeightSlot:
        rounded = self._rounder(experts, rows)

        def store(values: torch.Tensor, view: torch.Tensor) -> None:
            rounded(values.reshape(*view.shape[:-1], -1))

        return WeightSlot(self.view(experts, rows), shapes, source, transform, store=store)

    def view(self, experts: Experts, rows: slice) -> torch.Tensor:
        return self.parameters[""].data[experts][..., rows, :]

    def store(self, expert: int, rows: slice, weight: GroupedWeight, source: tuple[Index, ...]) -> None:
        shape = weight.codes.shape[0], weight.codes.shape[1]
        part = WeightPart(rows, shape, source)
        if weight.scales.shape[1] > 1:
            weight = weight.in_groups_of(self._group)
        weight = weight.of_part(part)
        codes, scales, zeros = weight.codes, weight.scales, torch.as_tensor(weight.zeros)
        if self._form.kind == "mxfp4":
            scales = exponents_of(scales)
        if self._form.has_offsets:
            middle = 1 << (self._form.bits - 1)
            self.parameters["_offsets"].data[expert, :, rows] = (scales * (middle - zeros)).T.half()
        self._put(expert, rows, codes, scales, (zeros / ZERO_STEP).expand(scales.shape), weight.factors)

    def mxfp4_slots(
        self, name: str, rows: slice, shape: tuple[int, int, int], outputs: slice, inputs: slice
    ) -> list[tuple[str, WeightSlot]]:
        """The slots of gpt-oss's stacked tensors of blocks and scales; they fill some outputs of all experts.

        Args:
            shape: of all experts' weights in the checkpoint.
            outputs, inputs: those that are stored.
        """
        groups = (*shape[:2], shape[2] // UNIT)
        source = slice(None), outputs, slice(inputs.start // UNIT, inputs.stop // UNIT)
        codes, scales = self.view(slice(None), rows), self.parameters["_scales"].data[:, :, rows]
        return [
            (
                f"{name}_blocks",
                WeightSlot(codes, ((*groups, UNIT // 2),), source, _repack_blocks, has_scale=True),
            ),
            (f"{name}_scales", WeightSlot(scales, (groups,), source, _swap, has_scale=True)),
        ]

    def _rounder(self, experts: Experts, rows: slice) -> Callable[[torch.Tensor], None]:
        def store(values: torch.Tensor) -> None:
            if isinstance(experts, int):
                self._round(experts, rows, values)
            else:
                num_experts = len(self.parameters[""])
                for expert, own in zip(range(num_experts)[experts], values, strict=True):
                    self._round(expert, rows, own)

        return store

    def _round(self, expert: int, rows: slice, values: torch.Tensor) -> None:
        start = rows.start
        for part in values.split(max(1, ROUNDED_AT_ONCE // values.shape[-1])):
            own = slice(start, start + len(part))
            if self._form.kind == "float8":
                codes, scales = quantize_rows(part.reshape(-1, self._group))
                self._put(expert, own, codes.view(part.shape), scales.view(len(part), -1))
            elif self._form.kind == "nvfp4":
                codes, scales, factors = round_to_nvfp4(part.float().unflatten(1, (-1, self._group)))
                self._put(expert, own, codes.flatten(1), scales, factors=factors)
            else:
                codes, scales, zeros = round_rows(part, _rounding(self._form), self._group)
                self._put(expert, own, codes, scales, zeros)
            start = own.stop

    def _put(
        self,
        expert: int,
        rows: slice,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> None:
        """Codes ``[out, in]``, scales and zeros ``[out, groups]``, factors ``[out, 1]``."""
        self.view(expert, rows).copy_(pack_units(codes) if self._form.bits == 4 else codes)
        self.parameters["_scales"].data[expert, :, rows] = scales.T
        if "_zeros" in self.parameters and zeros is not None:
            self.parameters["_zeros"].data[expert, :, rows] = zeros.T.to(torch.uint8)
        if factors is not None:
            self.parameters["_factors"].data[expert, rows] = factors[:, 0]


class BlockMatrix(ExpertMatrix):
    """Blocks of integers; see :class:`octavo.kernels.block_experts.BlockMatrices`.

    Args:
        name: the blocks' format.
        num_outputs: a multiple of sixteen, as are the ends of all parts of them.
    """

    def __init__(self, name: str, num_experts: int, num_outputs: int, num_inputs: int) -> None:
        self._name = name
        self._num_inputs = num_inputs
        num_bytes = FORMATS[name].panel_bytes(num_inputs)
        self.parameters = {"": empty_parameter(num_experts, num_outputs // LANES, num_bytes, dtype=torch.uint8)}

    @property
    def stored_as(self) -> str:
        return self._name

    @property
    def tensors(self) -> BlockMatrices:
        """What kernels take."""
        return BlockMatrices(self.parameters[""].data, self._name, self._num_inputs)

    def slot(
        self,
        experts: Experts,
        rows: slice,
        shapes: tuple[tuple[int, ...], ...],
        source: tuple[Index, ...],
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> WeightSlot:
        view = self.view(experts, rows)
        if self._name not in MADE_AT_LOAD:
            (shape,) = shapes
            return raw_slot(view, self._name, (shape[0], shape[1]), source)
        quantize = quantizer(self._name)

        def store(values: torch.Tensor, view: torch.Tensor) -> None:
            weights = values.reshape(-1, (rows.stop - rows.start), self._num_inputs)
            for own, panels in zip(weights, view.view(-1, *view.shape[-2:]), strict=True):
                quantize(own, panels)

        return WeightSlot(view, shapes, source, transform, store=store)

    def view(self, experts: Experts, rows: slice) -> torch.Tensor:
        return self.parameters[""].data[experts][..., rows.start // LANES : rows.stop // LANES, :]

    def store(self, expert: int, rows: slice, weight: GroupedWeight, source: tuple[Index, ...]) -> None:
        part = WeightPart(rows, (weight.codes.shape[0], weight.codes.shape[1]), source)
        weight = weight.in_groups_of(FORMATS[self._name].group).of_part(part)
        store_blocks(weight, self._name, self.view(expert, rows))


def suits(form: ExpertForm, hidden_size: int, size: int, num_ranks: int) -> bool:
    """Whether experts of these sizes can be kept so, if their inner size is divided over so many devices."""
    if isinstance(form, BlockForm):
        num_units = size // FORMATS[form.down].unit
        is_even = hidden_size % FORMATS[form.gate_up].unit == 0 and size % FORMATS[form.down].unit == 0
        return is_even and num_units >= num_ranks
    gate_up, down = forms_of(form)
    is_divided = size % UNIT == 0 and size // UNIT >= num_ranks
    return is_divided and packs(gate_up, 2 * size, hidden_size) and packs(down, hidden_size, size)


def forms_of(form: GroupedForm | PackedForms) -> tuple[GroupedForm, GroupedForm]:
    """Those of the weights of packed experts' first GEMM, and of the second."""
    return (form.gate_up, form.down) if isinstance(form, PackedForms) else (form, form)


def packs(form: GroupedForm, num_outputs: int, in_features: int) -> bool:
    """Whether kernels take packed weights of such a form and size."""
    group = form.group_of(in_features)
    is_half = (form.kind == "nvfp4" or (form.kind == "integer" and form.bits == 8)) and group == UNIT // 2
    has_groups = group == in_features or group % UNIT == 0 or is_half
    is_known = not (form.is_ordered or (form.has_zeros and form.bits == 8 and not form.has_offsets))
    unit = _FLOAT8_UNIT if form.kind == "float8" and group == in_features else UNIT
    is_even = in_features % unit == 0 and in_features % group == 0 and num_outputs % _ROWS_OF_TENSOR_CORES == 0
    return is_known and has_groups and is_even


def own_group(form: GroupedForm, inputs: range, in_features: int) -> int:
    """Inputs that share a scale where only some of them are stored: no group crosses their ends."""
    group = form.group_of(in_features)
    if group == in_features:
        return len(inputs)
    return math.gcd(group, inputs.start, inputs.stop)


def format_name(form: GroupedForm) -> str:
    """A form's name, for the plan."""
    return f"int{form.bits}" if form.kind == "integer" else form.kind


def _rounding(form: GroupedForm) -> Rounding:
    if form.kind == "mxfp4":
        return "mxfp4"
    return "int8" if form.bits == 8 else "int4"


def _repack_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """``[E, out, groups, 16]`` with neighbours in a byte → ``[E, out, in / 2]``."""
    packed = torch.empty_like(blocks)
    for own, found in zip(packed, blocks, strict=True):
        own.copy_(pack_units(unpack_bits(found, 4, UNIT)))
    return packed.flatten(2)


def _swap(scales: torch.Tensor) -> torch.Tensor:
    """``[E, out, groups] → [E, groups, out]``."""
    return scales.transpose(1, 2).contiguous()
