"""The weights of a layer's experts, from whichever form a checkpoint stores them in."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from octavo.kernels import FORMATS
from octavo.kernels.block_experts import BlockExperts, make_block_experts
from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.experts import ExpertsOp, ExpertWeights, make_experts, run_experts
from octavo.kernels.float4 import MX_GROUP
from octavo.kernels.packed_experts import UNIT, PackedExperts, make_packed_experts
from octavo.kernels.pair_sum import PairSum, sum_of
from octavo.layers.weights import sibling
from octavo.parallel import TensorParallel
from octavo.quantization.expert_matrices import (
    BlockMatrix,
    ExpertMatrix,
    PackedMatrix,
    PlainMatrix,
    forms_of,
    suits,
)
from octavo.quantization.float4_layout import Float4Layout
from octavo.quantization.float8_layout import Float8Layout
from octavo.quantization.grouped_weight import BlockForm, ExpertForm, GroupedWeight, Layout
from octavo.quantization.mxfp4 import Mxfp4Layout, scale_numbers, unpack
from octavo.quantization.pending import PendingStack, PendingTensors
from octavo.quantization.slot import WeightSlot
from octavo.records.experts import ExpertSpec, ExpertStorage, RowExperts, SeparateExperts, StackedExperts, StackedParts

_ALL = slice(None)
_BLOCK_BYTES = MX_GROUP // 2
_STACKED_LAYOUTS = (Float8Layout, Float4Layout)
"""Those of stacked tensors; with others, stacked tensors are read as values."""


class Experts(nn.Module):
    """Stacked experts: ``[E, 2·I, hidden]`` and ``[E, hidden, I]``; several devices divide ``I``.

    Args:
        intermediate_size: ``I`` of the whole model.
        storage: how checkpoints store them, unless each expert has tensors of its own; see :meth:`fit`.
        bias: whether their layers have biases.
        layouts: how the checkpoint stores the layers of a name; None for values.
        form: how the device keeps them; None for the compute type, as where their sizes do not suit.
        deterministic: whether a token's bits must not depend on the other tokens.

    Attributes:
        is_plain: whether they are computed by PyTorch's operations, whatever kernels the device has.
    """

    is_plain = False
    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        spec: ExpertSpec,
        storage: ExpertStorage,
        tensor_parallel: TensorParallel,
        *,
        bias: bool = False,
        layouts: Callable[[str], Layout | None] = lambda name: None,
        form: ExpertForm | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = num_experts, hidden_size, intermediate_size
        self._layouts = layouts
        self._storage = storage
        self._tensor_parallel = tensor_parallel
        self._deterministic = deterministic
        self._has_stacked_values = False
        self._op: ExpertsOp | None = None
        self._has_new_weights = True
        can_pack = form is not None and suits(form, hidden_size, intermediate_size, tensor_parallel.size)
        self._form = form if can_pack else None
        self._own = self._share(intermediate_size)
        own_size = len(self._own)
        self._gate_up = self._matrix("gate_up_proj", 2 * own_size, range(hidden_size), hidden_size)
        self._down = self._matrix("down_proj", hidden_size, self._own, intermediate_size)
        self.gate_up_bias = _parameter(num_experts, 2 * own_size) if bias else None
        self.down_bias = _parameter(num_experts, hidden_size) if bias else None

    @property
    def stored_as(self) -> str:
        """The format of the weights in memory, for the plan; empty for their type."""
        return " and ".join(dict.fromkeys((self._gate_up.stored_as, self._down.stored_as)))

    @property
    def num_parameters(self) -> int:
        """Number of weights and biases on this device, however they are stored."""
        num_experts, hidden, _ = self.sizes
        biases = sum(bias.numel() for bias in (self.gate_up_bias, self.down_bias) if bias is not None)
        return num_experts * 3 * len(self._own) * hidden + biases

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        self._has_new_weights = True
        if isinstance(self._storage, SeparateExperts):
            return self._separate_slots(path, self._storage)
        if isinstance(self._storage, RowExperts):
            return self._row_slots(path, self._storage)
        if isinstance(self._storage, StackedParts):
            return self._part_slots(path, self._storage)
        return self._stacked_slots(path, self._storage)

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :class:`octavo.layers.weights.FitsForms`.

        Quantised checkpoints may have tensors of each expert's own where others are stacked, and values of stacked
        experts beside quantised layers.
        """
        storage = self._storage
        if not isinstance(storage, (StackedExperts, StackedParts)):
            return
        separate = SeparateExperts()
        if any(has(f"{path}.0.{separate.gate}.{leaf}") for leaf in _leaves(self._layouts(f"{path}.0.{separate.gate}"))):
            self._storage = separate
        elif isinstance(storage, StackedExperts):
            name = sibling(path, storage.gate_up)
            first, *others = _leaves(self._layouts(name))
            self._has_stacked_values = not any(has(_stacked_name(name, leaf, first)) for leaf in others)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        if self._has_new_weights:
            self._op = self._make_op()
            self._has_new_weights = False

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each token's experts: ``[T, hidden]`` in and out; see :data:`ExpertsOp`."""
        return sum_of(self.run(x, (chosen, shares)))

    def run(self, x: torch.Tensor, choice: Chosen | DeferredChoice) -> torch.Tensor | PairSum:
        """:meth:`forward` of a router's choice, which may be left to the experts' kernels, as may the sum to others."""
        assert self._op is not None, "finish_weights() was called"
        y = run_experts(self._op, x, choice)
        return y if self._tensor_parallel.size == 1 else self._tensor_parallel.all_reduce(sum_of(y))

    @property
    def _own_slice(self) -> slice:
        """This device's part of the experts' intermediate size, to take from a checkpoint's tensor."""
        return slice(self._own.start, self._own.stop)

    def _share(self, size: int) -> range:
        """This device's part of the experts' intermediate size; of packed ones, in whole units of codes."""
        if self._form is None:
            return self._tensor_parallel.share(size, "outputs of an expert")
        unit = FORMATS[self._form.down].unit if isinstance(self._form, BlockForm) else UNIT
        num_units, rank, num_ranks = size // unit, self._tensor_parallel.rank, self._tensor_parallel.size
        return range(rank * num_units // num_ranks * unit, (rank + 1) * num_units // num_ranks * unit)

    def _matrix(self, name: str, num_outputs: int, inputs: range, in_features: int) -> ExpertMatrix:
        """The memory of a GEMM's weights, registered as parameters whose names begin so."""
        matrix: ExpertMatrix
        if self._form is None:
            matrix = PlainMatrix(self.sizes[0], num_outputs, len(inputs))
        elif isinstance(self._form, BlockForm):
            block = self._form.down if name == "down_proj" else self._form.gate_up
            matrix = BlockMatrix(block, self.sizes[0], num_outputs, len(inputs))
        else:
            gate_up, down = forms_of(self._form)
            own = down if name == "down_proj" else gate_up
            matrix = PackedMatrix(own, self.sizes[0], num_outputs, inputs, in_features)
        for end, parameter in matrix.parameters.items():
            self.register_parameter(name + end, parameter)
        return matrix

    def _make_op(self) -> ExpertsOp:
        biases = (self.gate_up_bias, self.down_bias)
        gate_up_bias, down_bias = (None if bias is None else bias.data for bias in biases)
        if isinstance(self._gate_up, PackedMatrix) and isinstance(self._down, PackedMatrix):
            rounds = self._gate_up.rounds_inputs and self._down.rounds_inputs
            packed = PackedExperts(self._gate_up.tensors, self._down.tensors, gate_up_bias, down_bias, rounds)
            make_packed = make_packed_experts.reference if self.is_plain else make_packed_experts
            return make_packed(packed.gate_up.codes, packed, self.spec, deterministic=self._deterministic)
        if isinstance(self._gate_up, BlockMatrix) and isinstance(self._down, BlockMatrix):
            blocks = BlockExperts(self._gate_up.tensors, self._down.tensors, gate_up_bias, down_bias)
            make_blocks = make_block_experts.reference if self.is_plain else make_block_experts
            return make_blocks(blocks.gate_up.packed, blocks, self.spec)
        tensors = self._gate_up.view(_ALL, _ALL), self._down.view(_ALL, _ALL)
        make = make_experts.reference if self.is_plain else make_experts
        weights = ExpertWeights(*tensors, gate_up_bias, down_bias)
        return make(tensors[0], weights, self.spec, deterministic=self._deterministic)

    def _separate_slots(self, path: str, storage: SeparateExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, hidden, size = self.sizes
        gate, up = self._halves
        own = self._own_slice
        for index in range(num_experts):
            for name, matrix, rows, shape, part in (
                (storage.gate, self._gate_up, gate, (size, hidden), (own, _ALL)),
                (storage.up, self._gate_up, up, (size, hidden), (own, _ALL)),
                (storage.down, self._down, slice(0, hidden), (hidden, size), (_ALL, own)),
            ):
                layer, source = f"{path}.{index}.{name}", () if len(self._own) == size else part
                layout = self._layouts(layer)
                if layout is None:
                    yield f"{layer}.weight", matrix.slot(index, rows, (shape,), source)
                else:
                    pending = PendingTensors(layout, shape, partial(_store, matrix, rows, source, index))
                    view = matrix.view(index, rows)
                    yield from ((f"{layer}.{leaf}", slot) for leaf, slot in pending.slots(view))
        yield from self._separate_bias_slots(path, storage)

    @property
    def _halves(self) -> tuple[slice, slice]:
        """The outputs of the gates, and of the up projections."""
        return slice(0, len(self._own)), slice(len(self._own), 2 * len(self._own))

    def _separate_bias_slots(self, path: str, storage: SeparateExperts) -> Iterator[tuple[str, WeightSlot]]:
        if self.gate_up_bias is None or self.down_bias is None:
            return
        rows = (self._own_slice,)
        for index, (gate_up, down) in enumerate(zip(self.gate_up_bias.data, self.down_bias.data, strict=True)):
            for name, view in zip((storage.gate, storage.up), gate_up.chunk(2), strict=True):
                yield f"{path}.{index}.{name}.bias", WeightSlot(view, ((self.sizes[2],),), rows)
            yield f"{path}.{index}.{storage.down}.bias", WeightSlot(down, transform=self._down_bias_transform)

    def _part_slots(self, path: str, storage: StackedParts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, hidden, size = self.sizes
        gate, up = self._halves
        own = self._own_slice
        for name, matrix, rows, shape, part in (
            (storage.gate, self._gate_up, gate, (size, hidden), (own, _ALL)),
            (storage.up, self._gate_up, up, (size, hidden), (own, _ALL)),
            (storage.down, self._down, slice(0, hidden), (hidden, size), (_ALL, own)),
        ):
            layer, source = sibling(path, name), () if len(self._own) == size else part
            layout = self._layouts(layer)
            if layout is None:
                shapes = ((num_experts, *shape),)
                yield f"{layer}.weight", matrix.slot(_ALL, rows, shapes, (_ALL, *source) if source else ())
            else:
                pending = PendingStack(layout, num_experts, shape, partial(_store, matrix, rows, source))
                yield from ((f"{layer}.{leaf}", slot) for leaf, slot in pending.slots(matrix.view(_ALL, rows)))

    def _row_slots(self, path: str, storage: RowExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, hidden, size = self.sizes
        rows = torch.arange(num_experts * size, device="cpu").view(num_experts, size)
        source = () if len(self._own) == size else (rows[:, self._own_slice].flatten(),)
        shapes = ((num_experts * size, hidden),)
        for name, half in zip((storage.gate, storage.up), self._halves, strict=True):
            yield sibling(path, name), self._gate_up.slot(_ALL, half, shapes, source, self._by_expert)
        yield sibling(path, storage.down), self._down.slot(_ALL, slice(0, hidden), shapes, source, self._as_down)

    def _by_expert(self, rows: torch.Tensor) -> torch.Tensor:
        """``[E · I, hidden] → [E, I, hidden]``."""
        return rows.unflatten(0, (self.sizes[0], -1))

    def _as_down(self, rows: torch.Tensor) -> torch.Tensor:
        """``[E · I, hidden] → [E, hidden, I]``."""
        return _transpose(self._by_expert(rows))

    def _stacked_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, hidden, size = self.sizes
        is_transposed, inputs = storage.is_transposed, self._own_slice
        layout = self._layouts(sibling(path, storage.gate_up))
        if storage.is_mxfp4:
            yield from self._mxfp4_slots(path, storage)
        elif isinstance(layout, _STACKED_LAYOUTS) and not self._has_stacked_values:
            yield from self._quantised_slots(path, storage, layout)
        else:
            outer = (num_experts, hidden, 2 * size) if is_transposed else (num_experts, 2 * size, hidden)
            inner = (num_experts, size, hidden) if is_transposed else (num_experts, hidden, size)
            turn = _transpose if is_transposed else None
            for half, rows in enumerate(self._halves):
                outputs = self._half(half, storage)
                source = (_ALL, _ALL, outputs) if is_transposed else (_ALL, outputs)
                yield sibling(path, storage.gate_up), self._gate_up.slot(_ALL, rows, (outer,), source, turn)
            source = (_ALL, inputs) if is_transposed else (_ALL, _ALL, inputs)
            yield sibling(path, storage.down), self._down.slot(_ALL, slice(0, hidden), (inner,), source, turn)
        yield from self._bias_slots(path, storage)

    def _mxfp4_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        """The slots of gpt-oss's tensors, where the device keeps them so."""
        num_experts, hidden, size = self.sizes
        if isinstance(self._gate_up, BlockMatrix):
            yield from self._quantised_slots(path, storage, Mxfp4Layout())
            return
        assert isinstance(self._gate_up, PackedMatrix) and isinstance(self._down, PackedMatrix), "see Mxfp4Experts"
        name, shape = sibling(path, storage.gate_up), (num_experts, 2 * size, hidden)
        for half, rows in enumerate(self._halves):
            yield from self._gate_up.mxfp4_slots(name, rows, shape, self._half(half, storage), slice(0, hidden))
        name, shape = sibling(path, storage.down), (num_experts, hidden, size)
        own = self._own_slice
        yield from self._down.mxfp4_slots(name, slice(0, hidden), shape, _ALL, own)

    def _quantised_slots(self, path: str, storage: StackedExperts, layout: Layout) -> Iterator[tuple[str, WeightSlot]]:
        """The slots of stacked values in a layout, and of their scales."""
        num_experts, hidden, size = self.sizes
        for name, matrix, num_rows, shape, store in (
            (
                storage.gate_up,
                self._gate_up,
                2 * len(self._own),
                (2 * size, hidden),
                partial(self._store_gate_up, storage),
            ),
            (storage.down, self._down, hidden, (hidden, size), self._store_down),
        ):
            pending = PendingStack(layout, num_experts, shape, store, is_transposed=storage.is_transposed)
            values = "" if storage.is_mxfp4 else pending.first
            slots = pending.slots(matrix.view(_ALL, slice(0, num_rows)))
            yield from ((sibling(path, _stacked_name(name, leaf, values)), slot) for leaf, slot in slots)

    def _store_gate_up(self, storage: StackedExperts, expert: int, weight: GroupedWeight) -> None:
        for half, rows in enumerate(self._halves):
            self._gate_up.store(expert, rows, weight, (self._half(half, storage), _ALL))

    def _store_down(self, expert: int, weight: GroupedWeight) -> None:
        self._down.store(expert, slice(0, self.sizes[1]), weight, (_ALL, self._own_slice))

    def _bias_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        if self.gate_up_bias is None or self.down_bias is None:
            return
        shape = (len(self.gate_up_bias), 2 * self.sizes[2])
        for half, view in enumerate(self.gate_up_bias.data.chunk(2, 1)):
            source = (_ALL, self._half(half, storage))
            yield sibling(path, f"{storage.gate_up}_bias"), WeightSlot(view, (shape,), source)
        down = WeightSlot(self.down_bias.data, transform=self._down_bias_transform)
        yield sibling(path, f"{storage.down}_bias"), down

    @property
    def _down_bias_transform(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        return None if self._tensor_parallel.rank == 0 else torch.zeros_like  # the ranks' results are added up

    def _half(self, half: int, storage: StackedExperts) -> slice:
        """This device's outputs of the gates (0) or of the up projections (1) among all outputs of both."""
        own = self._own
        if storage.is_interleaved:
            return slice(2 * own.start + half, 2 * own.stop, 2)
        return slice(half * self.sizes[2] + own.start, half * self.sizes[2] + own.stop)


class Mxfp4Experts(Experts):
    """Experts that are stored in MXFP4, which are expanded as they are loaded; see :class:`StackedExperts`.

    Numbers and scales come as tensors of their own, in any order. Scales are kept until all weights are there.
    """

    _scales: tuple[torch.Tensor, torch.Tensor] | None = None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        self._has_new_weights = True
        storage = self._storage
        assert isinstance(storage, StackedExperts)
        if not isinstance(self._gate_up, PlainMatrix):
            return super().weight_slots(path)
        return self._expanded_slots(path, storage)

    def _expanded_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, _, hidden = self.gate_up_proj.shape
        outer, inner = (
            (num_experts, 2 * self.sizes[2], hidden // MX_GROUP),
            (num_experts, hidden, self.sizes[2] // MX_GROUP),
        )
        if self._scales is None:
            empty = partial(torch.empty, dtype=torch.uint8, device=self.gate_up_proj.device)
            self._scales = empty(outer), empty(inner)
        for name, scales in zip((storage.gate_up, storage.down), self._scales, strict=True):
            yield sibling(path, f"{name}_scales"), WeightSlot(scales, has_scale=True)
        name = sibling(path, f"{storage.gate_up}_blocks")
        for half, view in enumerate(self.gate_up_proj.data.chunk(2, 1)):
            source = (_ALL, self._half(half, storage))
            yield name, WeightSlot(view, ((*outer, _BLOCK_BYTES),), source, self._unpack, has_scale=True)
        shapes = ((*inner, _BLOCK_BYTES),)
        down = WeightSlot(self.down_proj.data, shapes, transform=self._unpack_own_inputs, has_scale=True)
        yield sibling(path, f"{storage.down}_blocks"), down
        yield from self._bias_slots(path, storage)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        storage = self._storage
        assert isinstance(storage, StackedExperts)
        if self._scales is not None:
            outer, inner = self._scales
            for half, view in enumerate(self.gate_up_proj.data.chunk(2, 1)):
                scale_numbers(view, outer[:, self._half(half, storage)])
            scale_numbers(self.down_proj.data, inner, self._own_slice)
            self._scales = None
        super().finish_weights()

    def _unpack(self, blocks: torch.Tensor) -> torch.Tensor:
        return unpack(blocks, self.gate_up_proj.dtype)

    def _unpack_own_inputs(self, blocks: torch.Tensor) -> torch.Tensor:
        return self._unpack(blocks)[..., self._own_slice]


def _store(matrix: ExpertMatrix, rows: slice, source: tuple[slice, ...], expert: int, weight: GroupedWeight) -> None:
    matrix.store(expert, rows, weight, source)


def _leaves(layout: Layout | None) -> list[str]:
    """The names of a layer's tensors within it, that of its values first."""
    return ["weight"] if layout is None else list(layout.tensors((1, 1)))


def _stacked_name(name: str, leaf: str, values: str) -> str:
    """The name of a tensor of stacked layers; that of the values, if there is one, is ``name``."""
    if leaf == values:
        return name
    return f"{name}_{leaf.removeprefix('weight_') if leaf == 'weight_scale_inv' else leaf}"


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _transpose(matrices: torch.Tensor) -> torch.Tensor:
    return matrices.transpose(1, 2)
