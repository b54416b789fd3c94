"""The weights of a layer's experts, from whichever form a checkpoint stores them in."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from octavo.kernels.experts import ExpertsOp, ExpertWeights, make_experts
from octavo.kernels.float4 import MX_GROUP
from octavo.layers.weights import sibling
from octavo.parallel import TensorParallel
from octavo.quantization.float8_layout import Float8Layout, StackedFloat8Layout
from octavo.quantization.grouped_weight import GroupedWeight, Layout
from octavo.quantization.mxfp4 import scale_numbers, unpack
from octavo.quantization.pending import PendingTensors
from octavo.quantization.slot import WeightSlot
from octavo.records.experts import ExpertSpec, ExpertStorage, RowExperts, SeparateExperts, StackedExperts

_ALL = slice(None)
_BLOCK_BYTES = MX_GROUP // 2


class Experts(nn.Module):
    """Stacked experts: ``[E, 2·I, hidden]`` and ``[E, hidden, I]``; several devices divide ``I``.

    Args:
        intermediate_size: ``I`` of the whole model.
        storage: how the checkpoint stores them.
        bias: whether their layers have biases.
        layouts: how the checkpoint stores the layers of a name, which are expanded as they are loaded; None for values.

    Attributes:
        is_plain: whether they are computed by PyTorch's operations, whatever kernels the device has.
    """

    is_plain = False

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
    ) -> None:
        super().__init__()
        self.spec = spec
        self._layouts = layouts
        self._storage = storage
        self._tensor_parallel = tensor_parallel
        self._op: ExpertsOp | None = None
        self._has_new_weights = True
        self._size = intermediate_size
        self._own = tensor_parallel.share(intermediate_size, "outputs of an expert")
        own_size = len(self._own)
        self.gate_up_proj = _parameter(num_experts, 2 * own_size, hidden_size)
        self.down_proj = _parameter(num_experts, hidden_size, own_size)
        self.gate_up_bias = _parameter(num_experts, 2 * own_size) if bias else None
        self.down_bias = _parameter(num_experts, hidden_size) if bias else None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        self._has_new_weights = True
        if isinstance(self._storage, SeparateExperts):
            return self._separate_slots(path, self._storage)
        if isinstance(self._storage, RowExperts):
            return self._row_slots(path, self._storage)
        return self._stacked_slots(path, self._storage)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        if self._has_new_weights:
            tensors = (self.gate_up_proj.data, self.down_proj.data, self.gate_up_bias, self.down_bias)
            make = make_experts.reference if self.is_plain else make_experts
            self._op = make(self.gate_up_proj.data, ExpertWeights(*tensors), self.spec)
            self._has_new_weights = False

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each token's experts: ``[T, hidden]`` in and out; see :data:`ExpertsOp`."""
        assert self._op is not None, "finish_weights() was called"
        y = self._op(x, chosen, shares)
        return y if self._tensor_parallel.size == 1 else self._tensor_parallel.all_reduce(y)

    def _separate_slots(self, path: str, storage: SeparateExperts) -> Iterator[tuple[str, WeightSlot]]:
        size, hidden = self._size, self.gate_up_proj.shape[2]
        rows = slice(self._own.start, self._own.stop)
        for index, (gate_up, down) in enumerate(zip(self.gate_up_proj.data, self.down_proj.data, strict=True)):
            gate, up = gate_up.chunk(2)
            for name, view, shape, source in (
                (storage.gate, gate, (size, hidden), (rows,)),
                (storage.up, up, (size, hidden), (rows,)),
                (storage.down, down, (hidden, size), (_ALL, rows)),
            ):
                is_whole = len(self._own) == size
                layer, own = f"{path}.{index}.{name}", () if is_whole else source
                layout = self._layouts(layer)
                if layout is None:
                    yield f"{layer}.weight", WeightSlot(view, (shape,), own)
                else:
                    pending = PendingTensors(layout, shape, partial(_store_values, view, own))
                    yield from ((f"{layer}.{leaf}", slot) for leaf, slot in pending.slots(view))
        yield from self._separate_bias_slots(path, storage)

    def _separate_bias_slots(self, path: str, storage: SeparateExperts) -> Iterator[tuple[str, WeightSlot]]:
        if self.gate_up_bias is None or self.down_bias is None:
            return
        rows = (slice(self._own.start, self._own.stop),)
        for index, (gate_up, down) in enumerate(zip(self.gate_up_bias.data, self.down_bias.data, strict=True)):
            for name, view in zip((storage.gate, storage.up), gate_up.chunk(2), strict=True):
                yield f"{path}.{index}.{name}.bias", WeightSlot(view, ((self._size,),), rows)
            yield f"{path}.{index}.{storage.down}.bias", WeightSlot(down, transform=self._down_bias_transform)

    def _row_slots(self, path: str, storage: RowExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, size, hidden = len(self.down_proj), self._size, self.down_proj.shape[1]
        rows = torch.arange(num_experts * size, device="cpu").view(num_experts, size)
        source = () if len(self._own) == size else (rows[:, self._own.start : self._own.stop].flatten(),)
        shapes = ((num_experts * size, hidden),)
        gate, up = self.gate_up_proj.data.chunk(2, 1)
        yield sibling(path, storage.gate), WeightSlot(gate, shapes, source)
        yield sibling(path, storage.up), WeightSlot(up, shapes, source)
        yield sibling(path, storage.down), WeightSlot(self.down_proj.data, shapes, source, self._as_down)

    def _as_down(self, rows: torch.Tensor) -> torch.Tensor:
        """``[E · I, hidden] → [E, hidden, I]``."""
        return _transpose(rows.unflatten(0, (len(self.down_proj), -1)))

    def _stacked_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        num_experts, _, hidden = self.gate_up_proj.shape
        size, is_transposed = self._size, storage.is_transposed
        layout = self._layouts(sibling(path, storage.gate_up))
        if isinstance(layout, Float8Layout) and layout.has_blocks and not is_transposed:
            yield from self._float8_slots(path, storage, layout)
            return
        outer = (num_experts, hidden, 2 * size) if is_transposed else (num_experts, 2 * size, hidden)
        inner = (num_experts, size, hidden) if is_transposed else (num_experts, hidden, size)
        turn = _transpose if is_transposed else None
        for half, view in enumerate(self.gate_up_proj.data.chunk(2, 1)):
            outputs = self._half(half, storage)
            source = (_ALL, _ALL, outputs) if is_transposed else (_ALL, outputs)
            yield sibling(path, storage.gate_up), WeightSlot(view, (outer,), source, turn)
        inputs = slice(self._own.start, self._own.stop)
        source = (_ALL, inputs) if is_transposed else (_ALL, _ALL, inputs)
        yield sibling(path, storage.down), WeightSlot(self.down_proj.data, (inner,), source, turn)
        yield from self._bias_slots(path, storage)

    def _float8_slots(
        self, path: str, storage: StackedExperts, blocks: Float8Layout
    ) -> Iterator[tuple[str, WeightSlot]]:
        """The slots of stacked float8 values with scales per block."""
        num_experts, _, hidden = self.gate_up_proj.shape
        for name, view, shape, store in (
            (storage.gate_up, self.gate_up_proj.data, (2 * self._size, hidden), self._store_gate_up),
            (storage.down, self.down_proj.data, (hidden, self._size), self._store_down),
        ):
            layout = StackedFloat8Layout(blocks, num_experts)
            pending = PendingTensors(layout, shape, partial(store, storage))
            yield from ((sibling(path, f"{name}{leaf}"), slot) for leaf, slot in pending.slots(view))
        yield from self._bias_slots(path, storage)

    def _store_gate_up(self, storage: StackedExperts, weight: GroupedWeight) -> None:
        for own, expert in zip(self.gate_up_proj.data, weight.of_rows(2 * self._size), strict=True):
            values = expert.values()
            for half, view in enumerate(own.chunk(2)):
                view.copy_(values[self._half(half, storage)])

    def _store_down(self, storage: StackedExperts, weight: GroupedWeight) -> None:
        for own, expert in zip(self.down_proj.data, weight.of_rows(self.down_proj.shape[1]), strict=True):
            own.copy_(expert.values()[:, self._own.start : self._own.stop])

    def _bias_slots(self, path: str, storage: StackedExperts) -> Iterator[tuple[str, WeightSlot]]:
        if self.gate_up_bias is None or self.down_bias is None:
            return
        shape = (len(self.gate_up_bias), 2 * self._size)
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
        return slice(half * self._size + own.start, half * self._size + own.stop)


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
        num_experts, _, hidden = self.gate_up_proj.shape
        outer, inner = (num_experts, 2 * self._size, hidden // MX_GROUP), (num_experts, hidden, self._size // MX_GROUP)
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
            scale_numbers(self.down_proj.data, inner, slice(self._own.start, self._own.stop))
            self._scales = None
        super().finish_weights()

    def _unpack(self, blocks: torch.Tensor) -> torch.Tensor:
        return unpack(blocks, self.gate_up_proj.dtype)

    def _unpack_own_inputs(self, blocks: torch.Tensor) -> torch.Tensor:
        return self._unpack(blocks)[..., self._own.start : self._own.stop]


def _store_values(view: torch.Tensor, source: tuple[slice, ...], weight: GroupedWeight) -> None:
    view.copy_(weight.values()[source])


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _transpose(matrices: torch.Tensor) -> torch.Tensor:
    return matrices.transpose(1, 2)
