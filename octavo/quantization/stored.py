"""Schemes of layers that a checkpoint stores as integers in groups, or in another form with tensors of its own.

Which of them a layer has depends on the device: a CPU's compiled kernels take blocks of 32 inputs
(:class:`RepackedScheme`), other devices unpack integers in each GEMM (:class:`PackedScheme`) or round activations to
multiply them as they are (:class:`Int8Scheme`), and what none can do is expanded to the compute type as it is loaded
(:class:`ExpandedScheme`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from octavo.errors import WeightsError
from octavo.kernels import FLOAT8, FORMATS, LANES, LinearOp, int8_linear
from octavo.kernels.float4 import exponents_of
from octavo.kernels.grouped import (
    ZERO_STEP,
    GroupedTensors,
    ReorderedLinear,
    can_pack,
    code_unit,
    grouped_linear,
    pack_codes,
)
from octavo.quantization.blocks import MADE_AT_LOAD, BlockScheme, pack_blocks, quantizer
from octavo.quantization.float8_layout import Float8Layout
from octavo.quantization.grouped_weight import BlockForm, ExpertForm, GroupedForm, GroupedWeight, Layout
from octavo.quantization.pending import PendingTensors
from octavo.quantization.scheme import LinearScheme, LinearWeights, PlainScheme, empty_parameter
from octavo.quantization.slot import WeightPart, WeightSlot


@dataclass(frozen=True, slots=True)
class StoredScheme(LinearScheme):
    """A layer whose tensors are read together.

    Attributes:
        layout: how the checkpoint stores it.
        plain: the scheme of layers that are not quantised.
    """

    layout: Layout
    plain: PlainScheme

    def __str__(self) -> str:
        return f"{self.layout.name} ({self.layout.form or 'expanded at load'})"

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        module.restore_weight()
        pending = PendingTensors(self.layout, part.shape, partial(self._store, module, part))
        yield from pending.slots(self._place(module, part))
        if module.bias is not None:
            yield "bias", part.bias_slot(module.bias.data[part.outputs])

    @property
    @abstractmethod
    def kept_as(self) -> str:
        """What the device has of the weights, in a few words."""

    @abstractmethod
    def _place(self, module: LinearWeights, part: WeightPart) -> torch.Tensor:
        """The part of the weight that a layer's tensors fill."""

    @abstractmethod
    def _store(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> None:
        """Store what the module has of a layer's weight."""


@dataclass(frozen=True, slots=True)
class ExpandedScheme(StoredScheme):
    """Weights in the compute type, which are dequantised as they are loaded."""

    has_values: ClassVar[bool] = True

    @property
    def kept_as(self) -> str:
        return "expanded at load"

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        self.plain.create(module, bias=bias)

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        return self.plain.make_gemm(module)

    def _place(self, module: LinearWeights, part: WeightPart) -> torch.Tensor:
        return module.weight.data[part.outputs]

    def _store(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> None:
        values = part.taken(weight.values())
        self._place(module, part).copy_(values if part.order is None else part.order(values))


@dataclass(frozen=True, slots=True)
class _GroupedScheme(StoredScheme):
    """Weights that stay integers."""

    @property
    def form(self) -> GroupedForm:
        """What the values are."""
        assert self.layout.form is not None, "the scheme is chosen where there are integers"
        return self.layout.form

    @property
    def may_merge(self) -> bool:
        return not self.form.is_ordered  # each layer has an order of its own

    def fallback(self, plain: PlainScheme) -> LinearScheme:
        return ExpandedScheme(self.layout, plain)

    def divides_inputs(self, inputs: range, in_features: int) -> bool:
        if len(inputs) == in_features:
            return True
        if self.form.table is not None:
            return True  # parts of other sizes than groups have are expanded
        group = self.form.group_of(in_features)
        is_whole = inputs.start % group == 0 and inputs.stop % group == 0
        is_within = inputs.start // group == (inputs.stop - 1) // group
        return not self.form.is_ordered and (is_whole or is_within)

    def _create_order(self, module: LinearWeights) -> None:
        order = empty_parameter(module.in_features, dtype=torch.int64) if self.form.is_ordered else None
        module.register_parameter("input_order", order)

    def _own(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> GroupedWeight:
        """What the module has of a layer's weight, whose order of inputs is stored here."""
        weight = weight.of_part(part)
        if self.form.is_ordered:
            device = weight.codes.device
            order = torch.arange(module.in_features, device=device) if weight.order is None else weight.order
            module.get_parameter("input_order").data.copy_(order)
        return weight

    def _reordered(self, module: LinearWeights, op: LinearOp) -> LinearOp:
        return ReorderedLinear(op, module.get_parameter("input_order").data) if self.form.is_ordered else op


@dataclass(frozen=True, slots=True)
class PackedScheme(_GroupedScheme):
    """Packed integers, floats or indices of a table, with a scale per output and group; each GEMM unpacks them."""

    @property
    def kept_as(self) -> str:
        return "unpacked in each GEMM"

    @property
    def expert_form(self) -> GroupedForm | None:
        has_kernels = self.form.table is None or self.form.kind == "nvfp4"
        return replace(self.form, rounds_inputs=self._rounds_inputs) if has_kernels else None

    @property
    def stored_as(self) -> str:
        return f"int{self.form.bits}" if self.form.kind == "integer" else self.form.kind

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        form = self.form
        return can_pack(in_features, form.group_of(in_features), form.bits, has_table=form.table is not None)

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        form, size = self.form, (module.out_features, module.in_features * self.form.bits // 8)
        groups = module.out_features, form.num_groups(module.in_features)
        codes = empty_parameter(*size, dtype=FLOAT8 if form.kind == "float8" else torch.uint8)
        scale_type = {"mxfp4": torch.uint8, "nvfp4": FLOAT8}.get(form.kind, torch.float32)
        factors = empty_parameter(module.out_features, dtype=torch.float32) if form.kind == "nvfp4" else None
        module.register_parameter("weight", codes)
        module.register_parameter("weight_scale", empty_parameter(*groups, dtype=scale_type))
        zeros = None
        if form.has_zeros:
            zeros = empty_parameter(*groups, dtype=torch.float16 if form.has_offsets else torch.uint8)
        module.register_parameter("weight_zero", zeros)
        module.register_parameter("weight_factor", factors)
        self._create_order(module)
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        form, device = self.form, module.weight.device
        zeros = module.get_parameter("weight_zero").data if form.has_zeros else None
        zeros, offsets = (None, zeros) if form.has_offsets else (zeros, None)
        table = None if form.table is None else torch.tensor(form.table, dtype=torch.float32, device=device)
        factors = module.get_parameter("weight_factor").data if form.kind == "nvfp4" else None
        codes, scales = module.weight.data, module.weight_scale.data
        weight = GroupedTensors(codes, scales, zeros, form.bits, offsets, table, factors)
        bias = None if module.bias is None else module.bias.data
        op, is_copied = grouped_linear(
            weight.codes,
            weight,
            bias,
            deterministic=self.plain.deterministic,
            rounds_inputs=self._rounds_inputs,
            rows_dtype=module.compute_dtype if self.has_rows else None,
        )
        return self._reordered(module, op), is_copied

    @property
    def _rounds_inputs(self) -> bool:
        return isinstance(self.layout, Float8Layout) and self.layout.rounds_inputs

    def _place(self, module: LinearWeights, part: WeightPart) -> torch.Tensor:
        return module.weight.data[part.outputs]

    def _store(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> None:
        weight = self._own(module, part, weight)
        codes, scales = weight.codes, weight.scales
        if self.form.kind == "mxfp4":
            scales = exponents_of(scales)
        elif self.form.table is not None:
            self._check_group(module, weight)
        if weight.factors is not None:
            module.get_parameter("weight_factor").data[part.outputs] = weight.factors[:, 0]
        if self.form.bits == 4:
            codes = pack_codes(codes, code_unit(weight.group))
        self._place(module, part).copy_(codes)
        module.weight_scale.data[part.outputs] = scales
        if self.form.has_zeros:
            zeros = torch.as_tensor(weight.zeros)
            if self.form.has_offsets:
                zeros = weight.scales * ((1 << (self.form.bits - 1)) - zeros)
            elif self.form.bits == 4:
                zeros = zeros / ZERO_STEP
            module.get_parameter("weight_zero").data[part.outputs] = zeros

    def _check_group(self, module: LinearWeights, weight: GroupedWeight) -> None:
        """Reject groups that are not those of the form."""
        group = self.form.group_of(module.in_features)
        if weight.group != group:
            raise WeightsError(
                f"The {self.layout.name} weights have a scale for {weight.group} values; GPUs keep those packed that "
                f"have one for a multiple of {group}. Load them with --dtype float32, which expands them."
            )


@dataclass(frozen=True, slots=True)
class PackedTableScheme(PackedScheme):
    """Packed weights in the order of their inputs, whose rows can be read: of a head that an embedding shares."""

    has_rows: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Int8Scheme(_GroupedScheme):
    """Integers of 8 bits with a scale per output; activations are rounded per token, when they come.

    Where the inputs are divided over devices, each rounds its own part of an activation, with a scale of its own.

    Attributes:
        has_blocks: whether the device keeps experts in blocks, whose activations are rounded in groups.
    """

    has_blocks: bool = False

    @property
    def expert_form(self) -> ExpertForm | None:
        return BlockForm.of(block_format(self.form)) if self.has_blocks else self.form

    @property
    def kept_as(self) -> str:
        return "multiplied as int8, activations by token"

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        codes = empty_parameter(module.out_features, module.in_features, dtype=torch.int8)
        module.register_parameter("weight", codes)
        module.register_parameter("weight_scale", empty_parameter(module.out_features, dtype=torch.float32))
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        bias = None if module.bias is None else module.bias.data
        return int8_linear(module.weight.data, module.weight_scale.data, bias)

    def _place(self, module: LinearWeights, part: WeightPart) -> torch.Tensor:
        return module.weight.data[part.outputs]

    def _store(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> None:
        weight = self._own(module, part, weight)
        self._place(module, part).copy_(signed_codes(weight))
        module.weight_scale.data[part.outputs] = weight.scales[:, 0]


@dataclass(frozen=True, slots=True)
class RepackedScheme(_GroupedScheme):
    """Blocks of inputs in a format of the device's kernels; see :func:`block_format`."""

    @property
    def kept_as(self) -> str:
        name = self.blocks.format
        return f"{'rounded to' if name in MADE_AT_LOAD else 'kept as'} {name}, activations in 8 bits"

    @property
    def expert_form(self) -> BlockForm | None:
        has_blocks = self.form.group < 0 or self.form.group % self._group == 0
        return BlockForm.of(self.blocks.format) if has_blocks and not self.form.is_ordered else None

    @property
    def stored_as(self) -> str:
        return self.blocks.format

    @property
    def blocks(self) -> BlockScheme:
        """How the blocks are stored."""
        return BlockScheme(block_format(self.form))

    @property
    def _group(self) -> int:
        """Inputs that share a scale in a block."""
        return FORMATS[self.blocks.format].group

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        is_even = self.form.group_of(in_features) % self._group == 0
        return is_even and self.blocks.fits(in_features, part_sizes)

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        self.blocks.create(module, bias=bias)
        self._create_order(module)

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        op, is_copied = self.blocks.make_gemm(module)
        return self._reordered(module, op), is_copied

    def _place(self, module: LinearWeights, part: WeightPart) -> torch.Tensor:
        return module.weight.data[part.outputs.start // LANES : -(-part.outputs.stop // LANES)]

    def _store(self, module: LinearWeights, part: WeightPart, weight: GroupedWeight) -> None:
        store_blocks(self._own(module, part, weight), self.blocks.format, self._place(module, part))


_FLOAT_BLOCKS = {"mxfp4": "MXFP4", "nvfp4": "nvfp4", "float8": "int8"}


def block_format(form: GroupedForm) -> str:
    """The block format for a form; empty if there is none.

    It has exactly the values, but for scales in float16, and for float8 values: those are rounded to ``int8``.
    """
    if form.kind != "integer":
        return _FLOAT_BLOCKS.get(form.kind, "")
    if form.bits == 8 and form.has_zeros:
        return ""
    return "Q8_0" if form.bits == 8 else "Q4_1" if form.has_zeros else "Q4_0"


def store_blocks(weight: GroupedWeight, name: str, out: torch.Tensor) -> None:
    """Store a weight in a format of :func:`block_format`, as the device's kernels take it, ``[panels, bytes]``."""
    if name in MADE_AT_LOAD:
        quantizer(name)(weight.values(), out)
    else:
        pack_blocks(_raw_blocks(weight, name), name, weight.codes.shape[1], out)


def _raw_blocks(weight: GroupedWeight, name: str) -> torch.Tensor:
    """A weight as rows of blocks as files have them, ``[out, bytes]`` uint8."""
    group = FORMATS[name].group
    repeats = weight.group // group
    scales = weight.whole_scales.repeat_interleave(repeats, 1)
    if name == "nvfp4":
        scales = scales / 2  # its numbers are twice the floats
    fields = [exponents_of(scales)[..., None] if name == "MXFP4" else _halves(scales)]
    if name == "Q8_0":
        fields.append(signed_codes(weight).unflatten(1, (-1, group)).view(torch.uint8))
    else:
        if name == "Q4_1":
            zeros = torch.as_tensor(weight.zeros, device=scales.device).expand(weight.scales.shape)
            fields.append(_halves(-scales * zeros.repeat_interleave(repeats, 1)))
        low, high = weight.codes.unflatten(1, (-1, group)).chunk(2, -1)
        fields.append(low | (high << 4))
    raw = torch.cat(fields, -1)
    assert raw.shape[-1] == FORMATS[name].raw_bytes[0]
    return raw.flatten(1)


def signed_codes(weight: GroupedWeight) -> torch.Tensor:
    """The values before they are scaled, ``[out, in]`` int8, of a weight of 8 bits without zeros."""
    assert not isinstance(weight.zeros, torch.Tensor), "its form says so"
    return (weight.codes.to(torch.int16) - int(weight.zeros)).to(torch.int8)


def _halves(values: torch.Tensor) -> torch.Tensor:
    """``[out, blocks]`` → float16 as bytes, ``[out, blocks, 2]``."""
    return values.half()[..., None].contiguous().view(torch.uint8)
