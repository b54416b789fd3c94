"""The maths of pooling: sums by row, projection, normalisation, class probabilities, and late interaction."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from octavo.layers.norm import LayerNorm
from octavo.quantization.slot import Slots, WeightSlot
from octavo.records import DenseSpec, HeadRows, PoolingSpec, PoolingTask
from octavo.records.pooling import Activation

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
}
_SMALLEST_NORM = 1e-12
MAX_SCORE_ELEMENTS = 1 << 24
"""Maximum number of scores of tokens, by query token or by entry of the vocabulary, in memory at a time: 64 MiB."""


class Dense(nn.Module):
    """A linear layer, its activation and maybe a norm, in float32; its cost is negligible next to the model's."""

    def __init__(self, spec: DenseSpec) -> None:
        super().__init__()
        shape = (spec.out_features, spec.in_features)
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
        bias = torch.empty(spec.out_features, dtype=torch.float32) if spec.bias else None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.activation = ACTIVATIONS[spec.activation]
        self.spec = spec
        self.norm = None
        if spec.norm is not None:
            self.norm = LayerNorm(spec.out_features, spec.norm.eps, has_bias=spec.norm.bias).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, in] → [N, out]``."""
        x = self.activation(F.linear(x, self.weight, self.bias))
        return x if self.norm is None else self.norm(x)

    def slots(self) -> Slots:
        """Names in the checkpoint, and where the tensors go."""
        rows = self.spec.head_rows
        if rows is not None:
            head = rows.vocab_size, self.spec.in_features
            return {
                f"{self.spec.name}.weight": (WeightSlot(self.weight.data, (head,), transform=partial(_pick, rows)),)
            }
        named = dict(self.named_parameters(self.spec.name, recurse=False))
        if self.spec.bias_name:
            named[self.spec.bias_name] = named.pop(f"{self.spec.name}.bias")
        if self.norm is not None and self.spec.norm is not None:
            named |= dict(self.norm.named_parameters(self.spec.norm.name))
        return {name: (WeightSlot(parameter.data),) for name, parameter in named.items()}


def _pick(rows: HeadRows, head: torch.Tensor) -> torch.Tensor:
    """A classifier's weight, of a head's ``[vocab, hidden]``."""
    picked = head[rows.tokens].float()
    return picked[1:] - picked[:1] if rows.is_difference else picked


class Pooler(nn.Module):
    """Turns pooled hidden states into vectors, in float32.

    Attributes:
        spec: the pooling configuration from the model's files and settings.
    """

    def __init__(self, spec: PoolingSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dense_layers = [Dense(layer) for layer in spec.dense]
        self.dense = nn.ModuleList(self.dense_layers)

    def forward(
        self, states: torch.Tensor, task: PoolingTask, *, use_activation: bool = True, dimensions: int | None = None
    ) -> torch.Tensor:
        """The vectors for pooled states, or for the states of single tokens.

        Args:
            states: ``[N, hidden]``, of any floating type.
            use_activation: normalise embeddings (if the model does), and turn logits into probabilities.
            dimensions: number of leading dimensions of an embedding to keep.

        Returns:
            ``[N, size]`` float32.
        """
        x = self._dense(states)
        if task in ("classify", "token_classify"):
            x = x[:, self.spec.returned_token_ids] if self.spec.returned_token_ids else x
            x = (x - self.spec.logit_mean) / self.spec.logit_sigma
            return ACTIVATIONS[self.spec.activation](x) if use_activation else x
        if dimensions is not None:
            x = x[:, :dimensions]
        return F.normalize(x, dim=-1, eps=_SMALLEST_NORM) if use_activation else x

    def sparse(self, states: torch.Tensor, row_of_token: torch.Tensor, num_rows: int) -> torch.Tensor:
        """SPLADE's vectors (arXiv:2109.10086): for each entry of the vocabulary the largest ``log(1 + relu(logit))``.

        Args:
            states: ``[T, hidden]``.
            row_of_token: ``[T]`` int64.

        Returns:
            ``[num_rows, vocab]`` float32.
        """
        size = self.spec.output_size
        largest = torch.zeros(num_rows, size, dtype=torch.float32, device=states.device)
        at_a_time = max(1, MAX_SCORE_ELEMENTS // size)
        for part, rows in zip(states.split(at_a_time), row_of_token.split(at_a_time), strict=True):
            weights = self._dense(part).relu_().log1p_()
            largest.scatter_reduce_(0, rows[:, None].expand_as(weights), weights, "amax")
        return largest

    def _dense(self, states: torch.Tensor) -> torch.Tensor:
        x = states.float()
        for layer in self.dense_layers:
            x = layer(x)
        return x


def sum_by_row(states: torch.Tensor, row_of_token: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Sums of the states of each row's tokens.

    Args:
        states: ``[T, hidden]``.
        row_of_token: ``[T]`` int64.

    Returns:
        ``[num_rows, hidden]`` float32.
    """
    sums = torch.zeros(num_rows, states.shape[1], dtype=torch.float32, device=states.device)
    return sums.index_add_(0, row_of_token, states.float())


def max_sim(
    query: torch.Tensor,
    tokens: torch.Tensor,
    row_of_token: torch.Tensor,
    num_rows: int,
    max_elements: int = MAX_SCORE_ELEMENTS,
) -> torch.Tensor:
    """ColBERT's score of each row against a query: each query token's best match, summed (arXiv:2004.12832).

    One GEMM computes all rows for as many query tokens as the bound allows.

    Args:
        query: ``[Q, size]``.
        tokens: ``[T, size]``, of all rows.
        row_of_token: ``[T]`` int64; every row has a token.
        max_elements: maximum size of the score matrix (a single query token may exceed it).

    Returns:
        ``[num_rows]``.
    """
    total = tokens.new_zeros(num_rows)
    for part in query.split(max(1, max_elements // len(tokens))):
        similarity = tokens @ part.T  # [T, part of Q]
        best = similarity.new_full((num_rows, len(part)), float("-inf"))
        index = row_of_token[:, None].expand_as(similarity)
        total += best.scatter_reduce_(0, index, similarity, "amax").sum(-1)
    return total
