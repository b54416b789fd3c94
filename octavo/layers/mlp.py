"""The gated feed-forward layer."""

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.layers.build import Build

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activation names in configurations → names of gates in kernels."""


def gate_of(activation: str) -> str:
    """The gate of a configuration's activation, by its name in kernels.

    Raises:
        UnsupportedModelError: there is none.
    """
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"The activation {activation!r} is not supported; supported are {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[activation]


class GatedMLP(nn.Module):
    """``down(act(gate(x)) · up(x))`` (arXiv:2002.05202)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str, build: Build, *, bias: bool = False
    ) -> None:
        super().__init__()
        sizes = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = build.linear("gate_up_proj", hidden_size, sizes, bias=bias, split="column")
        self.down_proj = build.linear("down_proj", intermediate_size, hidden_size, bias=bias, split="row")
        self.activation = gate_of(activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.down_proj(self.gate_up_proj.gated(x, self.activation))
