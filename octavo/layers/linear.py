"""The linear layer: one or several layers of a checkpoint as one GEMM, or a device's part of it."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from octavo.kernels import DeferredNorm, DeferredOutput, GemmOutput, LinearOp, rows_of
from octavo.kernels.deferred_output import product
from octavo.kernels.linear import GATES, RoundedRows, RoundingLinearOp
from octavo.layers.weights import sibling
from octavo.parallel import TensorParallel
from octavo.quantization.scheme import LinearScheme, LinearWeights
from octavo.quantization.slot import WeightPart, WeightSlot

Inputs = torch.Tensor | DeferredNorm | RoundedRows
"""Rows that a layer multiplies; those that are rounded come from :meth:`Linear.gated_for`."""


class Linear(LinearWeights):
    """``y = x Wᵀ + b``; built by :meth:`octavo.layers.build.Build.linear`.

    Args:
        in_features: number of inputs on this device.
        parts: the checkpoint's layers that are computed as one, and what of them is, in the order of the outputs; names
            stand in for this layer's own.
    """

    keep_weight = False
    """Whether another module reads the weight (a tied embedding)."""
    is_member = False
    """Whether it is a part of a :class:`PartedLinear`, which has its slots."""
    takes_deferred_norms = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        parts: Sequence[tuple[str, WeightPart]],
        scheme: LinearScheme,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__(in_features, out_features)
        self.scheme = scheme
        self.packed: LinearOp | None = None  # the GEMM, if it holds a copy of the weight
        self._gemm: LinearOp | None = None
        self._defers_output = False
        self._parts = list(parts)
        scheme.create(self, bias=bias)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        return iter(()) if self.is_member else self.slots(path)

    def slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """The slots, for a layer at ``path``."""
        if self.packed is not None and self.packed.memory is not None and not self.has_weight:
            self.weight = nn.Parameter(self.packed.memory, requires_grad=False)  # finish_weights() packs it again
        for name, part in self._parts:
            for leaf, slot in self.scheme.slots(self, part):
                yield f"{sibling(path, name)}.{leaf}", slot

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`. A GEMM that reads the parameters themselves stays."""
        if not self.has_weight:
            return
        if self._gemm is not None and self.packed is None:
            self._gemm.refresh()
            return
        if self.packed is None or not self.packed.update(self.weight.data):
            self._gemm, is_copied = self.scheme.make_gemm(self)
            self.packed = self._gemm if is_copied else None
        if self.packed is not None and not self.keep_weight:
            self.free_weight()

    def defer_output(self) -> None:
        """Return outputs as :class:`octavo.kernels.DeferredOutput` from now on."""
        self._defers_output = True

    @property
    def writes_strided(self) -> bool:
        """Whether the rows of ``out`` may lie apart."""
        return self._gemm is not None and self._gemm.writes_strided

    def forward(self, x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor | DeferredOutput:
        """``[..., in] → [..., out]``, into ``out`` if it is given; see also :meth:`defer_output`."""
        if self._defers_output and out is None:
            assert self._gemm is not None, "weights are used before they are finished"
            return GemmOutput(self._gemm, x if isinstance(x, RoundedRows) else rows_of(x))
        return self.multiply(x, out)

    def multiply(self, x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        """:meth:`forward`, computed at once."""
        assert self._gemm is not None, "weights are used before they are finished"
        if isinstance(x, RoundedRows):
            assert out is None, "the outputs have memory of their own"
            return product(self._gemm, x)
        if isinstance(x, DeferredNorm):
            y = self._gemm.normed(x) if out is None else None
            return self._gemm(x.rows(), out) if y is None else y
        return self._gemm(x, out)

    def gated(self, x: torch.Tensor | DeferredNorm, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        assert self._gemm is not None, "weights are used before they are finished"
        if isinstance(x, DeferredNorm):
            y = self._gemm.normed(x, activation)
            return self._gemm.gated(x.rows(), activation) if y is None else y
        return self._gemm.gated(x, activation)

    def gated_for(
        self, reader: nn.Module, x: torch.Tensor | DeferredNorm, activation: str
    ) -> torch.Tensor | RoundedRows:
        """:meth:`gated`, rounded by this layer's GEMM if that of ``reader`` would round it, and this one can."""
        if isinstance(self._gemm, RoundingLinearOp) and isinstance(reader, Linear):
            rounded = self._gemm.gated_rounded(x, activation) if isinstance(reader._gemm, RoundingLinearOp) else None
            if rounded is not None:
                return rounded
        return self.gated(x, activation)


class RowParallelLinear(Linear):
    """A layer whose inputs are divided over devices, which add up their results."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        parts: Sequence[tuple[str, WeightPart]],
        scheme: LinearScheme,
        *,
        bias: bool,
        tensor_parallel: TensorParallel,
    ) -> None:
        super().__init__(in_features, out_features, parts, scheme, bias=bias)
        self._tensor_parallel = tensor_parallel

    def defer_output(self) -> None:
        """Outputs stay as they are: they are parts of sums."""

    def forward(self, x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in of this device] → [..., out]``, into ``out`` if it is given."""
        return self._tensor_parallel.all_reduce(self.multiply(x, out))


@runtime_checkable
class EndsInLayer(Protocol):
    """A module that returns what its last layer does."""

    @property
    def last_layer(self) -> nn.Module:
        """That layer."""
        ...


def defer_output(module: nn.Module) -> bool:
    """Let a module whose results are added to the residual stream leave them to the norm behind; whether it can."""
    last = module.last_layer if isinstance(module, EndsInLayer) else None
    if isinstance(last, Linear):
        last.defer_output()
    return isinstance(last, Linear)


class PartedLinear(nn.Module):
    """Layers of a checkpoint whose outputs are used as one layer's, while each is stored in a way of its own.

    Args:
        members: the layers, in the order of the outputs.
    """

    def __init__(self, in_features: int, members: Sequence["Linear | PartedLinear"]) -> None:
        super().__init__()
        linears = [member for member in members if isinstance(member, Linear)]
        assert len(linears) == len(members), "a member is one layer of the checkpoint"
        for member in linears:
            member.is_member = True
        self.in_features = in_features
        self.out_features = sum(member.out_features for member in linears)
        self.members = nn.ModuleList(linears)
        self._linears = linears

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        for member in self._linears:
            yield from member.slots(path)

    def forward(self, x: torch.Tensor | DeferredNorm, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[T, in] → [T, out]``, into ``out`` if it is given."""
        x = rows_of(x)
        y = x.new_empty(len(x), self.out_features) if out is None else out
        start = 0
        for member in self._linears:
            part = y[:, start : start + member.out_features]
            if member.writes_strided:
                member(x, part)
            else:
                part.copy_(member(x))
            start += member.out_features
        return y

    def gated(self, x: torch.Tensor | DeferredNorm, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        return GATES[activation](self(x))

    def gated_for(self, reader: nn.Module, x: torch.Tensor | DeferredNorm, activation: str) -> torch.Tensor:
        """:meth:`gated`; see :meth:`Linear.gated_for`."""
        return self.gated(x, activation)
