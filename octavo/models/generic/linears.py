"""Octavo's GEMMs behind the library's linear layers, which take ``[1, T, in]``."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from octavo import kernels
from octavo.layers.build import Build, Split
from octavo.layers.linear import Linear, PartedLinear
from octavo.models.generic.behaviour import GatedLayers
from octavo.models.generic.lazy import as_rows, value_of
from octavo.parallel import Section
from octavo.quantization.slot import WeightSlot


class TokenLinear(nn.Module):
    """A linear layer over the last of any number of dimensions.

    Args:
        build: of the module around it.
        name: its own attribute name.
        split, head_size: what several devices divide; see :meth:`Build.linear`.
        section: of its outputs; None if they need no description.
    """

    def __init__(
        self,
        layer: nn.Linear,
        build: Build,
        name: str,
        split: Split | None,
        head_size: int,
        section: Section | None = None,
    ) -> None:
        super().__init__()
        parts = layer.out_features if section is None else [section]
        has_bias = layer.bias is not None
        linear = build.linear(name, layer.in_features, parts, bias=has_bias, split=split, head_size=head_size)
        assert isinstance(linear, Linear), "one layer of the checkpoint"
        linear.is_member = True
        self.linear = linear

    @property
    def weight(self) -> nn.Parameter:
        """The parameter, whose type and device the library's code may ask for; its values may be packed."""
        return self.linear.weight

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        return self.linear.slots(path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in] → [..., out]``."""
        return self.linear(as_rows(x)).view(*x.shape[:-1], -1)


class SharedGemm:
    """One GEMM for several layers of a module that read the same tensor one after another.

    Args:
        linear: with the outputs of all layers.
        sizes: outputs of each, in the order in which the module runs them.
    """

    def __init__(self, linear: Linear | PartedLinear, sizes: Sequence[int]) -> None:
        self.linear = linear
        self._sizes = list(sizes)
        self._input: torch.Tensor | None = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    def outputs(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Those of one layer for ``x``, ``[..., in] → [..., out]``; the first layer computes those of all."""
        if x is not self._input:
            y = self.linear(as_rows(x)).view(*x.shape[:-1], -1)
            self._input, self._outputs = x, y.split(self._sizes, -1)
        found = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._input, self._outputs = None, ()
        return found


class SharedLinear(nn.Module):
    """One of the layers of a :class:`SharedGemm`, whose weights are the GEMM's."""

    def __init__(self, gemm: SharedGemm, index: int) -> None:
        super().__init__()
        self._gemm = gemm
        self._index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in] → [..., out]``."""
        return self._gemm.outputs(x, self._index)


class TokenMLP(nn.Module):
    """``down(act(gate(x)) · up(x))`` over the last of any number of dimensions.

    Args:
        module: the library's.
        found: its parts.
        build: of the module itself.
        is_divided: whether several devices divide it.
    """

    def __init__(self, module: nn.Module, found: GatedLayers, build: Build, *, is_divided: bool) -> None:
        super().__init__()
        layers = {name: module.get_submodule(name) for name in (*found.inputs, found.output)}
        linears = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        first, down = linears[found.inputs[0]], linears[found.output]
        halves = [Section(down.in_features)] * 2
        parts = halves if len(found.inputs) == 1 else dict(zip(found.inputs, halves, strict=True))
        name = "gate_up_proj" if len(found.inputs) > 1 else found.inputs[0]
        splits: tuple[Split | None, Split | None] = ("column", "row") if is_divided else (None, None)
        self.gate_up_proj = build.linear(name, first.in_features, parts, bias=first.bias is not None, split=splits[0])
        self.down_proj = build.linear(
            found.output, down.in_features, down.out_features, bias=down.bias is not None, split=splits[1]
        )
        self._gate = found.gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., hidden]`` in and out."""
        return self.down_proj(self.gate_up_proj.gated(as_rows(x), self._gate)).view(*x.shape[:-1], -1)


class TokenActivation(nn.Module):
    """An activation over values that nothing else reads.

    Args:
        kind: its name in kernels.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape, in and out; may overwrite ``x``."""
        return kernels.activate(value_of(x), self._kind)
