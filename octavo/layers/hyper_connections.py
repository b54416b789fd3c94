"""Hyper-connections (arXiv:2409.19606): several residual streams, from which layers read and to which they write.

The weights with which they do follow from the streams. Layers of this form get and return the streams,
``[T, N, hidden]``, as ``x``, and nothing that is still to be added to them.
"""

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import nn

from octavo import kernels
from octavo.kernels import RopeTables
from octavo.kernels.routing import LogitsOp, make_logits, sigmoid
from octavo.layers.context import StepContext
from octavo.layers.norm import Norm, RMSNorm


class StreamWeights(nn.Module):
    """A weight from 0 to 1 for each stream and purpose, from all streams together, in float32.

    Args:
        num_purposes: how many weights each stream gets.
        eps: of the norm over all streams, which has no weight.
    """

    _ones: torch.Tensor

    def __init__(self, num_streams: int, hidden_size: int, num_purposes: int, eps: float) -> None:
        super().__init__()
        size = num_streams * hidden_size
        self.hc_fn = _parameter(num_purposes * num_streams, size)
        self.hc_base = _parameter(num_purposes * num_streams)
        self.hc_scale = _parameter(num_purposes)
        self.register_buffer("_ones", torch.ones(size, dtype=torch.float32), persistent=False)
        self._shape = num_purposes, num_streams
        self._eps = eps
        self._op: LogitsOp | None = None

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_logits(self.hc_fn.data, None)

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``[T, N, hidden]`` → for each purpose ``[T, N, 1]`` float32."""
        assert self._op is not None, "finish_weights() was called"
        normed = kernels.rms_norm(streams.flatten(1).float(), self._ones, self._eps)
        logits = self._op(normed).unflatten(1, self._shape)
        return sigmoid(logits * self.hc_scale[:, None] + self.hc_base.view(self._shape))[..., None].unbind(1)


class HyperConnection(StreamWeights):
    """How one part of a layer reads from the streams and writes to them.

    Args:
        magnitude: the largest weight with which it writes.
        least: added to all weights.
    """

    def __init__(self, num_streams: int, hidden_size: int, eps: float, *, magnitude: float, least: float) -> None:
        super().__init__(num_streams, hidden_size, 2, eps)
        self.magnitude = magnitude
        self.least = least

    def run(self, streams: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The streams after a part that computes ``[T, hidden]`` of the same."""
        read, written = self(streams)
        y = part(_weighted_sum(streams, read + self.least))
        return (streams + (self.magnitude * written + self.least) * y[:, None]).to(streams.dtype)


class HyperLayer(nn.Module):
    """An attention and a feed-forward part between streams.

    Args:
        norm: makes a norm of the hidden size.
        connection: makes the connection of a part with the streams.
        num_streams: the first layer makes so many of the embeddings; None for others.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm: Callable[[], Norm],
        connection: Callable[[], HyperConnection],
        num_streams: int | None = None,
    ) -> None:
        super().__init__()
        self.attn_hc = connection()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.ffn_hc = connection()
        self.post_attention_layernorm = norm()
        self.mlp = feed_forward
        self._num_streams = num_streams

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, None]:
        """See the module's description, and :meth:`octavo.layers.decoder.PreNormLayer.forward`."""
        assert residual is None, "all layers of a model are of this form"
        streams = x if self._num_streams is None else x[:, None].expand(-1, self._num_streams, -1)
        streams = self.attn_hc.run(streams, lambda read: self.self_attn(self.input_layernorm(read), ropes, step))
        return self.ffn_hc.run(streams, lambda read: self.mlp(self.post_attention_layernorm(read))), None


class StreamsNorm(RMSNorm):
    """The final norm, of a weighted sum of the streams.

    Args:
        weights: of the streams.
        least: added to the weights.
    """

    def __init__(self, size: int, eps: float, weights: StreamWeights, least: float) -> None:
        super().__init__(size, eps)
        self.hc_head = weights
        self.least = least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, N, hidden] → [T, hidden]``."""
        (read,) = self.hc_head(x)
        return super().forward(_weighted_sum(x, read + self.least))


def _weighted_sum(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``[T, N, hidden]`` and ``[T, N, 1]`` → ``[T, hidden]``, in one order for all sizes."""
    return reduce(torch.add, (streams * weights).unbind(1)).to(streams.dtype)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
