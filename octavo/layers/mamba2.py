"""Mamba-2's mixer: a gated state-space layer in attention's place (arXiv:2405.21060)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from octavo.kernels import RopeTables
from octavo.kernels.state_space import causal_conv, gated_rms_norm, state_space_scan
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext
from octavo.records import State, StateTensor


@dataclass(frozen=True, slots=True)
class StateSpaceSizes:
    """Sizes of a mixer.

    Attributes:
        num_heads, head_dim: ``H`` and ``P``; the inner size is their product.
        num_groups, state_size: ``G`` and ``N``: heads of a group share their input and output vectors of ``N`` values.
        conv_width: tokens that the convolution sees, the newest included.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_width: int

    @property
    def inner(self) -> int:
        """Size between the projections."""
        return self.num_heads * self.head_dim

    @property
    def conv(self) -> int:
        """Channels of the convolution."""
        return self.inner + 2 * self.num_groups * self.state_size


class Mamba2Mixer(CachedLayer):
    """Projects to a gate, to inputs of a short convolution and to step sizes; scans; gates; projects back.

    Args:
        eps: of the gated norm.
        dt_limit: bounds of the step sizes.
        bias, conv_bias: whether projections and convolution have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        sizes: StateSpaceSizes,
        build: Build,
        *,
        eps: float,
        dt_limit: tuple[float, float],
        bias: bool,
        conv_bias: bool,
    ) -> None:
        dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        conv_state = StateTensor((sizes.conv, sizes.conv_width - 1), dtype)
        scan_state = StateTensor((sizes.num_heads, sizes.head_dim, sizes.state_size), "float32")
        super().__init__({build.name: State((scan_state, conv_state))})
        self.name = build.name
        self.sizes = sizes
        self.eps = eps
        self.dt_limit = dt_limit
        self.in_proj = build.linear("in_proj", hidden_size, sizes.inner + sizes.conv + sizes.num_heads, bias=bias)
        self.conv1d = _DepthwiseConv(sizes.conv, sizes.conv_width, bias=conv_bias)
        self.A_log, self.D, self.dt_bias = (
            nn.Parameter(torch.empty(sizes.num_heads, dtype=torch.float32), requires_grad=False) for _ in range(3)
        )
        self.norm = _Weight(sizes.inner)
        self.out_proj = build.linear("out_proj", sizes.inner, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        sizes, inputs = self.sizes, step.inputs[self.name]
        scan_state, conv_state = step.caches[self.name]
        gate, mixed, dt = self.in_proj(x).split((sizes.inner, sizes.conv, sizes.num_heads), dim=-1)
        mixed = causal_conv(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, conv_state, inputs)
        shared = sizes.num_groups * sizes.state_size
        inner, b, c = mixed.split((sizes.inner, shared, shared), dim=-1)
        y = state_space_scan(
            inner.unflatten(-1, (sizes.num_heads, sizes.head_dim)),
            dt,
            self.A_log,
            b.unflatten(-1, (sizes.num_groups, sizes.state_size)),
            c.unflatten(-1, (sizes.num_groups, sizes.state_size)),
            self.D,
            self.dt_bias,
            self.dt_limit,
            scan_state,
            inputs,
        ).flatten(1)
        group_size = sizes.inner // sizes.num_groups
        return self.out_proj(gated_rms_norm(y, gate, self.norm.weight, self.eps, group_size))


class _DepthwiseConv(nn.Module):
    """Parameters of a convolution of each channel by itself: weight ``[C, 1, K]``, bias ``[C]``."""

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False) if bias else None


class _Weight(nn.Module):
    """A norm's weight, ``[size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
