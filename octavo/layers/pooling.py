"""The maths of pooling: sums by row, projection, normalisation, class probabilities, and late interaction."""

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
"""Maximum number of token-by-query-token scores in memory at a time: 64 MiB in float32."""


class Dense(nn.Module):
    """A linear layer and its activation, in float32; its cost is negligible next to the model's."""

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
    """Turns pooled hidden states into vectors, in float32.

    Attributes:
        spec: the pooling configuration from the model's files and settings.
    """

    def __init__(self, spec: PoolingSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dense = nn.ModuleList(Dense(layer) for layer in spec.dense)

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
