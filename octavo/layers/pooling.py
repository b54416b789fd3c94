"""From hidden states to vectors: linear layers, lengths, classes, and the match of two sets of vectors."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from octavo.records import DenseSpec, PoolingSpec, PoolingTask
from octavo.records.pooling import Activation

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
    "tanh": torch.tanh,
}
_SMALLEST_NORM = 1e-12
MAX_SCORE_ELEMENTS = 1 << 24
"""Scores of tokens against query tokens that are held at a time: 64 MiB in float32."""


class Dense(nn.Module):
    """A linear layer and its activation, in float32: what stands behind the last layer costs nothing beside it."""

    def __init__(self, spec: DenseSpec) -> None:
        super().__init__()
        shape = (spec.out_features, spec.in_features)
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
        bias = torch.empty(spec.out_features, dtype=torch.float32) if spec.bias else None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, in] → [N, out]``."""
        return self.activation(F.linear(x, self.weight, self.bias))


class Pooler(nn.Module):
    """What makes vectors of hidden states, in float32.

    Attributes:
        spec: what the model's files say.
    """

    def __init__(self, spec: PoolingSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dense = nn.ModuleList(Dense(layer) for layer in spec.dense)

    def forward(
        self, states: torch.Tensor, task: PoolingTask, *, use_activation: bool = True, dimensions: int | None = None
    ) -> torch.Tensor:
        """Vectors of pooled states, or of the states of single tokens.

        Args:
            states: ``[N, hidden]``, of any floating type.
            use_activation: bring embeddings to length 1 (if the model does that), make probabilities of logits.
            dimensions: leading numbers of an embedding to keep.

        Returns:
            ``[N, size]`` float32.
        """
        x = states.float()
        for layer in self.dense:
            x = layer(x)
        if task in ("classify", "token_classify"):
            return ACTIVATIONS[self.spec.activation](x) if use_activation else x
        if dimensions is not None:
            x = x[:, :dimensions]
        return F.normalize(x, dim=-1, eps=_SMALLEST_NORM) if use_activation else x


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
    """How well rows of token embeddings match a query's: each query token's best match, summed up (arXiv:2004.12832).

    One GEMM serves all rows and as many of the query's tokens as the bound allows.

    Args:
        query: ``[Q, size]``.
        tokens: ``[T, size]``, of all rows.
        row_of_token: ``[T]`` int64; every row has a token.
        max_elements: of the matrix of scores, token by query token; a single query token may need more.

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
