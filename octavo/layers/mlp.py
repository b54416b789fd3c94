"""Feed-forward layers."""

from statistics import NormalDist
from typing import Any

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.kernels import DeferredNorm, square_root
from octavo.kernels.experts import apply_gate
from octavo.kernels.linear import GATES
from octavo.layers.activation import Activation
from octavo.layers.build import Build
from octavo.layers.row_mean import RowMean
from octavo.parallel import Section
from octavo.records.experts import ExpertSpec

_GATES = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
"""Activation names in configurations → names of gates in kernels."""


def gate_of(activation: str) -> str:
    """The gate of a configuration's activation, by its name in kernels.

    Raises:
        UnsupportedModelError: there is none.
    """
    if activation not in _GATES:
        raise UnsupportedModelError(
            f"The activation {activation!r} is not supported; supported are {', '.join(_GATES)}."
        )
    return _GATES[activation]


class GatedMLP(nn.Module):
    """``down(act(gate(x)) · up(x))`` (arXiv:2002.05202).

    Args:
        is_fused: whether checkpoints have the first two as one layer ``gate_up_proj``.
    """

    takes_deferred_norms = True

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        build: Build,
        *,
        bias: bool = False,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        sections = {"gate_proj": Section(intermediate_size), "up_proj": Section(intermediate_size)}
        parts = list(sections.values()) if is_fused else sections
        self.gate_up_proj = build.linear("gate_up_proj", hidden_size, parts, bias=bias, split="column")
        self.down_proj = build.linear("down_proj", intermediate_size, hidden_size, bias=bias, split="row")
        self.activation = gate_of(activation)

    @property
    def last_layer(self) -> nn.Module:
        """See :class:`octavo.layers.linear.EndsInLayer`."""
        return self.down_proj

    def forward(self, x: torch.Tensor | DeferredNorm) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.down_proj(self.gate_up_proj.gated_for(self.down_proj, x, self.activation))


class BoundedGatedMLP(GatedMLP):
    """A gated layer with an expert's bounds.

    Args:
        spec: what it computes between its GEMMs.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        build: Build,
        *,
        spec: ExpertSpec,
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, build, **options)
        self._spec = spec

    def forward(self, x: torch.Tensor | DeferredNorm) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.down_proj(apply_gate(self.gate_up_proj(x), self._spec))


class SparseGatedMLP(GatedMLP):
    """A gated layer in which a share of each token's gates is 0: those that a normal distribution has below the rest.

    Args:
        sparsity: that share.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str, build: Build, *, sparsity: float
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, build)
        self._tensor_parallel = build.tensor_parallel
        self._num_own = len(build.tensor_parallel.share(intermediate_size, "outputs of a layer"))
        self._num_deviations = NormalDist().inv_cdf(sparsity)
        self.mean = RowMean(self._num_own)

    def forward(self, x: torch.Tensor | DeferredNorm) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        y = self.gate_up_proj(x)
        gates = y[:, : self._num_own].float()
        centered = gates - self._mean(gates)
        cutoff = square_root(self._mean(centered.square())) * self._num_deviations
        y[:, : self._num_own] = (centered - cutoff).relu()
        return self.down_proj(GATES[self.activation](y))

    def _mean(self, own: torch.Tensor) -> torch.Tensor:
        """The mean over all devices' parts of rows."""
        mean: torch.Tensor = self.mean(own)
        tp = self._tensor_parallel
        return mean if tp.size == 1 else tp.all_reduce(mean) / tp.size


class MLP(nn.Module):
    """``down(act(up(x)))``.

    Args:
        activation: a function or a module, whose parameters are then under ``act_fn``.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Activation, build: Build, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.up_proj = build.linear("up_proj", hidden_size, intermediate_size, bias=bias, split="column")
        self.act_fn = activation
        self.down_proj = build.linear("down_proj", intermediate_size, hidden_size, bias=bias, split="row")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.down_proj(self.act_fn(self.up_proj(x)))
