"""The form that all formats of integer weights are read into: values, a scale per group of inputs, a zero per group.

A :class:`Layout` says which tensors a checkpoint has for a layer, and reads them. The schemes of
:mod:`octavo.quantization.stored` take what it returns and know no format.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch

from octavo.errors import WeightsError
from octavo.kernels import FLOAT8
from octavo.kernels.float4 import FLOAT4_VALUES, TABLES
from octavo.quantization.slot import WeightPart


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """What a layer's values are, before any of them is read.

    Attributes:
        bits: of a value.
        group: consecutive inputs that share a scale; -1 for all inputs.
        has_zeros: whether groups have zeros of their own; otherwise zero is in the middle of the codes.
        is_ordered: whether inputs may have to be reordered, so that those of a group are neighbours (act-order).
        kind: what they are; only integers have zeros. MXFP4 has powers of two as scales, NVFP4 float8 values beside a
            factor.
        rounds_inputs: whether they were made for activations that are rounded to int8, and have a scale per output.
        has_offsets: whether zeros are no whole numbers, so that what the middle of codes stands for is kept instead.
        stored_bits: of a value in the checkpoint, if devices keep it in more; 0 otherwise.
    """

    bits: int
    group: int
    has_zeros: bool = False
    is_ordered: bool = False
    kind: Literal["integer", "float8", "mxfp4", "nvfp4", "nf4", "fp4", "iq4"] = "integer"
    rounds_inputs: bool = False
    has_offsets: bool = False
    stored_bits: int = field(default=0, compare=False)

    def __str__(self) -> str:
        kept = f" in {self.bits} bits" if self.stored_bits else ""
        kind = f"{self.stored_bits or self.bits}-bit integers{kept}" if self.kind == "integer" else self.kind
        shared = "" if self.group < 0 else f" and {self.group} inputs"
        return f"{kind}, a scale per output{shared}{', in act-order' if self.is_ordered else ''}"

    @property
    def table(self) -> tuple[float, ...] | None:
        """The values that kernels look up by codes; None if they compute them."""
        return TABLES.get(self.kind)

    def group_of(self, num_inputs: int) -> int:
        """Inputs that share a scale in a layer of so many."""
        return num_inputs if self.group < 0 else min(self.group, num_inputs)

    def num_groups(self, num_inputs: int) -> int:
        """Groups of a layer with so many inputs."""
        return -(-num_inputs // self.group_of(num_inputs))


def integer_form(
    bits: int, group: int, *, has_zeros: bool, is_ordered: bool = False, rounds_inputs: bool = False
) -> GroupedForm:
    """The form of integers of up to eight bits: of 4 bits or 8, whichever is enough.

    Wider ones than the checkpoint's have no zeros of their own; see :meth:`GroupedWeight.widened`.
    """
    kept = 4 if bits <= 4 else 8
    is_wider = kept > bits
    return GroupedForm(
        kept,
        group,
        has_zeros=has_zeros and not is_wider,
        is_ordered=is_ordered,
        rounds_inputs=rounds_inputs,
        stored_bits=bits if is_wider else 0,
    )


@dataclass(frozen=True, slots=True)
class PackedForms:
    """Packed experts whose two GEMMs have weights of different forms.

    Attributes:
        gate_up, down: those of the two GEMMs' weights.
    """

    gate_up: GroupedForm
    down: GroupedForm


@dataclass(frozen=True, slots=True)
class BlockForm:
    """Experts as blocks of integers, for devices that multiply these; see :mod:`octavo.kernels.blocks`.

    Attributes:
        gate_up, down: formats of the two GEMMs' weights.
    """

    gate_up: str
    down: str

    @classmethod
    def of(cls, name: str) -> "BlockForm":
        """Both in one format."""
        return cls(name, name)


ExpertForm = GroupedForm | PackedForms | BlockForm
"""How a device keeps experts."""


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A weight ``[out, in]``: ``scales · (codes - zeros)``, where each input has the scale and the zero of its group.

    Attributes:
        codes: ``[out, in]`` uint8, or values of a floating-point type.
        scales: ``[out, groups]`` float32.
        group: inputs of a group; the last group may have fewer.
        zeros: ``[out, groups]`` float32, or the zero of all groups.
        order: ``[in]`` int64: column ``j`` of the codes belongs to the input ``order[j]``; None if they are in order.
        table: the values that codes are indices of; None if they are numbers.
        factors: ``[out, 1]`` float32, which the scales are multiplied by; None for 1.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    zeros: torch.Tensor | float = 0.0
    order: torch.Tensor | None = None
    table: tuple[float, ...] | None = None
    factors: torch.Tensor | None = None

    @property
    def whole_scales(self) -> torch.Tensor:
        """Scales times factors, ``[out, groups]``."""
        return self.scales if self.factors is None else self.scales * self.factors

    def of_part(self, part: WeightPart) -> "GroupedWeight":
        """The outputs, and the whole groups of inputs, that a module stores of a layer."""
        outputs, inputs = (*part.source, slice(None), slice(None))[:2]
        assert isinstance(inputs, slice), "inputs are divided in order"
        start, stop, _ = inputs.indices(self.codes.shape[1])
        is_whole = stop - start == self.codes.shape[1]
        # Part of a group keeps its scale.
        groups = slice(start // self.group, -(-stop // self.group))
        is_one = groups.stop - groups.start == 1
        assert is_whole or (self.order is None and (is_one or start % self.group == 0)), "checked by divides_inputs"

        def rows(values: torch.Tensor, columns: slice) -> torch.Tensor:
            own = values[outputs][:, columns]
            return own if part.order is None else part.order(own)

        return GroupedWeight(
            rows(self.codes, slice(start, stop)),
            rows(self.scales, groups),
            min(self.group, stop - start) if is_one else self.group,
            rows(self.zeros, groups) if isinstance(self.zeros, torch.Tensor) else self.zeros,
            self.order,
            self.table,
            None if self.factors is None else rows(self.factors, slice(None)),
        )

    def in_groups_of(self, group: int) -> "GroupedWeight":
        """The same weight with smaller groups, of which the present ones have whole numbers."""
        if group >= self.group:
            return self
        count = self.group // group
        zeros = self.zeros.repeat_interleave(count, 1) if isinstance(self.zeros, torch.Tensor) else self.zeros
        return replace(self, scales=self.scales.repeat_interleave(count, 1), group=group, zeros=zeros)

    def values(self) -> torch.Tensor:
        """The weight itself, ``[out, in]`` float32, its inputs in the checkpoint's order."""
        num_inputs = self.codes.shape[1]
        if self.table is None:
            weight = self.codes.to(torch.float32, copy=True)
        else:
            weight = torch.tensor(self.table, device=self.codes.device)[self.codes.int()]
        weight -= self._by_input(self.zeros, num_inputs) if isinstance(self.zeros, torch.Tensor) else self.zeros
        weight *= self._by_input(self.whole_scales, num_inputs)
        if self.order is None:
            return weight
        in_order = torch.empty_like(weight)
        in_order[:, self.order] = weight
        return in_order

    def in_order_of(self, groups: torch.Tensor, layer_format: str) -> "GroupedWeight":
        """The same weight with inputs reordered by their groups.

        Args:
            groups: ``[in]``, the group of each input.
            layer_format: the checkpoint's format, for the error.

        Raises:
            WeightsError: groups are of unequal sizes.
        """
        groups = groups.long()
        order = groups.argsort(stable=True)
        expected = torch.arange(len(groups), device=groups.device) // self.group
        if not torch.equal(groups[order], expected):
            raise WeightsError(f"The {layer_format} weights have a g_idx whose groups are not of {self.group} inputs.")
        return replace(self, codes=self.codes[:, order], order=order)

    def widened(self, form: GroupedForm) -> "GroupedWeight":
        """The same weight in a form of :func:`integer_form`: with a bit more, integers less their zeros fit."""
        if not form.stored_bits:
            return self
        middle = 1 << (form.bits - 1)
        zeros = self._by_input(self.zeros, self.codes.shape[1]) if isinstance(self.zeros, torch.Tensor) else self.zeros
        codes = self.codes.to(torch.int16) + (middle - torch.as_tensor(zeros)).to(torch.int16)
        return replace(self, codes=codes.to(torch.uint8), zeros=float(middle))

    def _by_input(self, values: torch.Tensor, num_inputs: int) -> torch.Tensor:
        """``[out, groups] → [out, in]``."""
        return values.repeat_interleave(self.group, 1)[:, :num_inputs]


class StoredTensor(NamedTuple):
    """What a tensor of a checkpoint may be.

    Attributes:
        shapes: the usual one first; -1 stands for any size.
        dtypes: the usual one first.
        raw_type: the type of a GGUF tensor that arrives as rows of bytes; see :class:`.slot.WeightSlot`.
        alternatives: other names of the tensor within its layer.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    raw_type: str = ""
    alternatives: tuple[str, ...] = ()


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class Layout(ABC):
    """How a checkpoint stores a linear layer. Layouts are values, like schemes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The format's name, for messages."""

    @property
    @abstractmethod
    def form(self) -> GroupedForm | None:
        """What the values are; None if they are no integers in groups of inputs, so that only values can be read."""

    @abstractmethod
    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        """The tensors of a layer of the shape ``[out, in]``, by their names within the layer."""

    @abstractmethod
    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        """The weight in the tensors of a layer; without a :attr:`form`, only its values count.

        Raises:
            WeightsError: they contradict each other or the configuration.
        """

    def is_found(self, name: str, has: Callable[[str], bool]) -> bool:
        """Whether a checkpoint stores the layer of a name so, rather than as one tensor of values.

        Args:
            has: whether the checkpoint has a tensor of a name.
        """
        stored = self.tensors((1, 1))
        leaves = {*stored, *(other for tensor in stored.values() for other in tensor.alternatives)}
        return any(has(f"{name}.{leaf}") for leaf in leaves - {"weight"})

    def noise(self, shape: tuple[int, int], std: float, generator: torch.Generator) -> GroupedWeight:
        """A random weight whose values have about this standard deviation."""
        form = self.form or GroupedForm(8, -1)
        num_outputs, num_inputs = shape
        device, largest = generator.device, 1 << form.bits
        codes = torch.randint(largest, shape, generator=generator, device=device, dtype=torch.uint8)
        step = std * math.sqrt(12) / largest  # of a uniform distribution over all codes
        zeros = float(largest // 2)
        if form.kind == "float8":
            codes, zeros = (codes.float() - zeros).to(FLOAT8), 0.0
        table = FLOAT4_VALUES if form.kind == "mxfp4" else form.table
        if table is not None:
            zeros, step = 0.0, std / _std_of(table)
        if form.kind == "mxfp4":
            step = 2.0 ** round(math.log2(step))
        scales = torch.ones(num_outputs, form.num_groups(num_inputs), device=device)
        factors = torch.full((num_outputs, 1), step, device=device)
        weight = GroupedWeight(codes, scales, form.group_of(num_inputs), zeros, table=table, factors=factors)
        return weight if form.kind == "nvfp4" else replace(weight, scales=weight.whole_scales, factors=None)


def _std_of(table: tuple[float, ...]) -> float:
    """Of a uniform distribution over all sixteen codes."""
    return math.hypot(*table) / 4
