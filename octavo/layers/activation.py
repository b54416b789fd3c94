"""Activations of feed-forward layers without a gate, by their names in configurations; gates are in ``mlp.py``."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from octavo import kernels
from octavo.errors import UnsupportedModelError

Activation = Callable[[torch.Tensor], torch.Tensor]


_KINDS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
}
"""Activation names in configurations → names in kernels."""


def activation_kind(name: str) -> str:
    """The name of a configuration's activation in kernels.

    Raises:
        UnsupportedModelError: there is none.
    """
    if name not in _KINDS:
        raise UnsupportedModelError(f"The activation {name!r} is not supported; supported are {', '.join(_KINDS)}.")
    return _KINDS[name]


def activation_of(name: str) -> Activation:
    """The activation of a configuration, which may overwrite what it gets.

    Raises:
        UnsupportedModelError: there is none of this name.
    """
    return partial(kernels.activate, kind=activation_kind(name))


class XIELU(nn.Module):
    """xIELU with trained slopes (arXiv:2411.13010), named as checkpoints name them."""

    _slopes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = _parameter(1)
        self.alpha_n = _parameter(1)
        self.beta = _parameter()
        self.eps = _parameter()
        self.register_buffer("_slopes", torch.zeros(4, dtype=torch.float32), persistent=False)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        above, below, beta, eps = (part.view(1).float() for part in (self.alpha_p, self.alpha_n, self.beta, self.eps))
        self._slopes.copy_(torch.cat((F.softplus(above), beta + F.softplus(below), beta, eps)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape, in and out."""
        return kernels.xielu(x, self._slopes)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)
