"""Decoder layers of other forms: in parallel parts, and with norms after each addition; see ``decoder.py``."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from octavo.kernels import RopeTables
from octavo.layers.context import StepContext
from octavo.layers.norm import Norm


class ParallelLayer(nn.Module):
    """``x + attention(norm(x)) + feed_forward(norm(x))``: GPT-J's layer.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.mlp = feed_forward

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`octavo.layers.decoder.PreNormLayer.forward`."""
        normed, residual = self.input_layernorm.enter(x, residual)
        return self.self_attn(normed, ropes, step) + self.mlp(normed), residual


class TwoNormParallelLayer(nn.Module):
    """``x + attention(norm₁(x)) + feed_forward(norm₂(x))``: GPT-NeoX's layer.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.attention_norm = norm()
        self.self_attn = attention
        self.feed_forward_norm = norm()
        self.mlp = feed_forward

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`octavo.layers.decoder.PreNormLayer.forward`."""
        normed, residual = self.attention_norm.enter(x, residual)
        return self.self_attn(normed, ropes, step) + self.mlp(self.feed_forward_norm(residual)), residual


class NormAfterLayer(nn.Module):
    """``norm(x + attention(x))``, then ``norm(x + feed_forward(x))``: the first transformer's layer.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.self_attn = attention
        self.input_layernorm = norm()
        self.mlp = feed_forward
        self.post_attention_layernorm = norm()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, None]:
        """The stream after the layer, with nothing to be added to it; see :meth:`.decoder.PreNormLayer.forward`."""
        assert residual is None, "all layers of a model are of this form"
        x, _ = self.input_layernorm.add(self.self_attn(x, ropes, step), x)
        return self.post_attention_layernorm.add(self.mlp(x), x)[0], None
