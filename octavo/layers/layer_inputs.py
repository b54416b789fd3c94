"""Inputs of tokens for each layer, beside their embedding (per-layer embeddings)."""

import torch
from torch import nn

from octavo.kernels import gather_rows
from octavo.layers.build import Build
from octavo.layers.embedding import Embedding
from octavo.layers.norm import RMSNorm


class LayerInputs(nn.Module):
    """For each token and layer, a vector from a table and one from the token's embedding.

    Args:
        table_size: tokens in the table; the others have the inputs of token 0.
        size: of a vector.
    """

    _table_rows: torch.Tensor

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        vocab_size: int,
        table_size: int,
        size: int,
        eps: float,
        build: Build,
    ) -> None:
        super().__init__()
        width = num_layers * size
        self.embed_tokens_per_layer = Embedding(
            table_size,
            width,
            scheme=build.embedding_scheme("embed_tokens_per_layer"),
            scale=size**0.5,
            tensor_parallel=build.tensor_parallel,
        )
        self.per_layer_model_projection = build.linear("per_layer_model_projection", hidden_size, width)
        self.per_layer_projection_norm = RMSNorm(size, eps)
        rows = torch.arange(vocab_size)
        self.register_buffer("_table_rows", rows.where(rows < table_size, 0), persistent=False)
        self._shape = num_layers, size
        self._scale = hidden_size**-0.5

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
        """``[T, layers, size]``.

        Args:
            x: ``[T, hidden]``, the embeddings.
            given: places whose embeddings were given in place of tokens; they have nothing from the table.
        """
        projected = (self.per_layer_model_projection(x) * self._scale).unflatten(1, self._shape)
        projected = self.per_layer_projection_norm(projected)
        listed = self.embed_tokens_per_layer(gather_rows(self._table_rows, token_ids))
        inputs = (projected + listed.unflatten(1, self._shape)) * 0.5**0.5
        return inputs if given is None else inputs.index_copy(0, given, projected[given])
