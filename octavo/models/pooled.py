"""Pooling models: a backbone that computes hidden states, and a pooler that turns them into vectors."""

from collections.abc import Iterable
from typing import Protocol, cast

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.kernels.packed_attention import PaddedRows
from octavo.layers.pooling import Pooler
from octavo.models.base import CausalLM


class EncoderBackbone(nn.Module):
    """A model with bidirectional attention: embeddings, and the one loop over the layers of all encoders.

    Args:
        embeddings: ``[T]`` token ids, positions and segments → ``[T, hidden]``.
        layers: built in order; each takes ``[T, hidden]`` and the plan, and returns ``[T, hidden]``.
        weight_prefix: prefix of the weights' names in checkpoints with a head beside them.
    """

    def __init__(self, embeddings: nn.Module, layers: Iterable[nn.Module], weight_prefix: str) -> None:
        super().__init__()
        self.weight_prefix = weight_prefix
        self.embeddings = embeddings
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: list[PaddedRows]
    ) -> torch.Tensor:
        """Run the layers over sequences laid end to end.

        Args:
            token_ids, positions: ``[≥ T]`` int64; entries past the sequences are padding.
            segments: ``[≥ T]`` int64, 0 for the first text of a pair, 1 for the second.
            plan: from :func:`octavo.kernels.packed_attention.plan_packed`.

        Returns:
            ``[≥ T, hidden]``.
        """
        x: torch.Tensor = self.embeddings(token_ids, positions, segments)
        for layer in self.encoder["layer"].children():
            x = layer(x, plan)
        return x


class WithHead(Protocol):
    """A model with its layers under ``model`` and its head under ``lm_head``."""

    model: nn.Module
    lm_head: nn.Module


class PooledModel(nn.Module):
    """A backbone and its pooler.

    Attributes:
        backbone: an :class:`EncoderBackbone`, or a decoder without its head.
        weight_prefix: optional prefix of the backbone's weight names in checkpoints.
    """

    def __init__(self, backbone: nn.Module, pooler: Pooler, weight_prefix: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooler = pooler
        self.weight_prefix = weight_prefix


def as_pooled(model: CausalLM, config: ModelConfig) -> PooledModel:
    """Build a generating model without its head, and with a pooler.

    Raises:
        UnsupportedModelError: its family has layers and head under other attributes.
    """
    assert config.pooling is not None, "the configuration of a model that answers with vectors"
    # Not isinstance: from Python 3.12 on, protocol checks do not see submodules, which are not plain attributes.
    if not {"model", "lm_head"} <= dict(model.named_children()).keys():
        raise UnsupportedModelError(f"{config.architecture} cannot be used for vectors: it has no head to do without.")
    model.input_embedding.take_back()
    del cast(WithHead, model).lm_head
    return PooledModel(model, Pooler(config.pooling), "model.").eval()
