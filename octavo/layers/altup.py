"""AltUp (arXiv:2301.13310): several streams, of which a layer computes one and predicts the others.

Layers of this form get and return :class:`Streams` as ``x``, and nothing that is still to be added to them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import nn

from octavo.kernels import RopeTables, activate, square_root
from octavo.kernels.routing import LogitsOp, make_logits, sigmoid
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.layer_inputs import LayerInputs
from octavo.layers.mlp import gate_of
from octavo.layers.norm import Norm, RMSNorm
from octavo.layers.row_mean import RowMean

_LEAST_SQUARE = 1e-5


@dataclass(frozen=True, slots=True)
class Streams:
    """What passes from layer to layer.

    Attributes:
        values: ``[N, T, hidden]``.
        layer_inputs: ``[T, layers, size]``, each token's own input for each layer.
    """

    values: torch.Tensor
    layer_inputs: torch.Tensor


class _Coefficients(nn.Module):
    """A linear layer of few inputs, in float32."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = _parameter(num_outputs, num_inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, inputs] → [T, outputs]``, in one order for all sizes."""
        return reduce(torch.add, (x[:, None] * self.weight).unbind(-1))


class _StreamRouter(nn.Module):
    """A number from −1 to 1 for each stream, from one of them, in float32."""

    def __init__(self, hidden_size: int, num_streams: int) -> None:
        super().__init__()
        self.weight = _parameter(num_streams, hidden_size)
        self._op: LogitsOp | None = None

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_logits(self.weight.data, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden] → [T, N]``."""
        assert self._op is not None, "finish_weights() was called"
        return 2 * sigmoid(2 / x.shape[1] * self._op(x)) - 1  # a tanh; for the bits' sake row by row


class AltUp(nn.Module):
    """Predicts the streams behind a layer from those before it, and corrects them by what the layer computed.

    Args:
        active: the stream that the layer computes.
    """

    def __init__(self, num_streams: int, hidden_size: int, eps: float, *, active: int) -> None:
        super().__init__()
        self.router_norm = RMSNorm(hidden_size, eps)
        self.modality_router = _StreamRouter(hidden_size, num_streams)
        self.prediction_coefs = _Coefficients(num_streams, num_streams**2)
        self.correction_coefs = _Coefficients(num_streams, num_streams)
        self.correct_output_scale = nn.Parameter(torch.zeros(hidden_size), requires_grad=False)
        self.active = active
        self._num_streams = num_streams

    def predict(self, streams: torch.Tensor) -> torch.Tensor:
        """``[N, T, hidden]`` in and out."""
        n = self._num_streams
        shares = self.prediction_coefs(self._modalities(streams[self.active])).view(-1, n, n)
        shares = shares.permute(2, 1, 0)[..., None].to(streams.dtype)  # [from, to, T, 1]
        return reduce(torch.add, (stream * share for stream, share in zip(streams, shares, strict=True)), streams)

    def correct(self, predictions: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """``[N, T, hidden]`` and ``[T, hidden]`` → ``[N, T, hidden]``."""
        shares = (self.correction_coefs(self._modalities(computed)) + 1).to(computed.dtype)
        return predictions + (computed - predictions[self.active]) * shares.T[..., None]

    def _modalities(self, x: torch.Tensor) -> torch.Tensor:
        modalities: torch.Tensor = self.modality_router(self.router_norm(x))
        return modalities


class LowRankResidual(nn.Module):
    """``x + norm(right(left(x)))``: a learned augmented residual layer (LAuReL, arXiv:2411.07501)."""

    def __init__(self, hidden_size: int, rank: int, eps: float, build: Build) -> None:
        super().__init__()
        self.linear_left = build.linear("linear_left", hidden_size, rank)
        self.linear_right = build.linear("linear_right", rank, hidden_size)
        self.post_laurel_norm = RMSNorm(hidden_size, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        normed: torch.Tensor = self.post_laurel_norm(self.linear_right(self.linear_left(x)))
        return x + normed


class AltUpLayer(nn.Module):
    """Attention beside a low-rank map, and a feed-forward part, between streams; then the token's own input.

    Args:
        index: of the layer.
        norm: makes a norm of the hidden size.
        input_size: of the token's own input.
        activation: of that input's gate, by its name in configurations.
        scales_output: whether that input is gated by a scaled stream.
    """

    def __init__(
        self,
        index: int,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm: Callable[[], Norm],
        altup: AltUp,
        laurel: LowRankResidual,
        build: Build,
        *,
        hidden_size: int,
        input_size: int,
        activation: str,
        scales_output: bool,
    ) -> None:
        super().__init__()
        self.altup = altup
        self.laurel = laurel
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norm()
        self.per_layer_input_gate = build.linear("per_layer_input_gate", hidden_size, input_size)
        self.per_layer_projection = build.linear("per_layer_projection", input_size, hidden_size)
        self.post_per_layer_input_norm = norm()
        self._index = index
        self._activation = gate_of(activation)
        self._scales_output = scales_output

    def forward(
        self, x: Streams, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[Streams, None]:
        """See the module's description, and :meth:`octavo.layers.decoder.PreNormLayer.forward`."""
        assert residual is None, "all layers of a model are of this form"
        predictions = self.altup.predict(x.values)
        stream = predictions[self.altup.active]
        normed = self.input_layernorm(stream)
        attended = stream + self.post_attention_layernorm(self.self_attn(normed, ropes, step))
        stream = (attended + self.laurel(normed)) * 0.5**0.5
        stream = stream + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(stream)))
        values = self.altup.correct(predictions, stream)
        values[1:] += self._own_input(values[self.altup.active], x.layer_inputs[:, self._index])
        return replace(x, values=values), None

    def _own_input(self, stream: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """What a token's own input adds to all streams but the first."""
        scaled = stream * self.altup.correct_output_scale if self._scales_output else stream
        gated = activate(self.per_layer_input_gate(scaled), self._activation, own)
        added: torch.Tensor = self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return added


class _Resized(nn.Module):
    """Projections of vectors, brought to the size of others."""

    def __init__(self, num_projections: int, hidden_size: int, build: Build) -> None:
        super().__init__()
        self.projections = nn.ModuleList(
            build.linear(f"{index}", hidden_size, hidden_size) for index in range(num_projections)
        )
        self.mean = RowMean(hidden_size)

    def forward(self, first: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """Each of ``others``, ``[N − 1, T, hidden]``, projected and with the root mean square of ``first``."""
        size = square_root(self._square(first))
        projected = [projection(x) for projection, x in zip(self.projections, others, strict=True)]
        return [(x * (size / square_root(self._square(x).clamp(min=_LEAST_SQUARE)))).to(x.dtype) for x in projected]

    def _square(self, x: torch.Tensor) -> torch.Tensor:
        square: torch.Tensor = self.mean(x.float().square())
        return square


class StreamsEntry(nn.Module):
    """Makes the first layer's streams from embeddings: these, and projections of theirs.

    Args:
        layer_inputs: makes tokens' own inputs for each layer.
    """

    def __init__(self, num_streams: int, hidden_size: int, layer_inputs: LayerInputs, build: Build) -> None:
        super().__init__()
        self.altup = _Resized(num_streams - 1, hidden_size, build.at("altup.projections"))
        self.layer_inputs = layer_inputs

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor, given: torch.Tensor | None) -> Streams:
        """See :class:`octavo.models.base.LayerStack`."""
        others = self.altup(x, x.expand(len(self.altup.projections), -1, -1))
        return Streams(torch.stack((x, *others)), self.layer_inputs(x, token_ids, given))


class StreamsMean(RMSNorm):
    """The final norm, of the mean of the first stream and projections of the others."""

    def __init__(self, size: int, eps: float, num_streams: int, build: Build) -> None:
        super().__init__(size, eps)
        self.altup = _Resized(num_streams - 1, size, build.at("altup.projections"))

    def forward(self, x: Streams) -> torch.Tensor:  # type: ignore[override]
        """``[T, hidden]``."""
        streams = [x.values[0], *self.altup(x.values[0], x.values[1:])]
        return super().forward(reduce(torch.add, streams) / len(streams))


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
