"""Pooling models: a backbone that computes hidden states, and a pooler that turns them into vectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Protocol, cast

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.encoder_config import EncoderFields
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.kernels.packed_attention import BidirectionalAttention, PackedPlan, PackedRows
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.encoder import EncoderEmbeddings
from octavo.layers.norm import LayerNorm
from octavo.layers.pooling import Pooler
from octavo.layers.rotary import RotaryEmbedding
from octavo.layers.weights import CheckpointNames
from octavo.models.base import CausalLM, cache_specs
from octavo.records import ChunkedLocal, Full, SlidingWindow


class EncoderBase(nn.Module, ABC):
    """A model with bidirectional attention.

    Attributes:
        weight_prefix: prefix of the weights' names in checkpoints with a head beside them.
        unused_weights: see :class:`CausalLM`.
    """

    weight_prefix: str
    unused_weights: tuple[str, ...] = ()

    @abstractmethod
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor:
        """Run the layers over sequences laid end to end.

        Args:
            token_ids, positions: ``[≥ T]`` int64; entries past the sequences are padding.
            segments: ``[≥ T]`` int64, 0 for the first text of a pair, 1 for the second.
            plan: of the sequences.

        Returns:
            ``[≥ T, hidden]``.
        """


class EncoderBackbone(EncoderBase):
    """Embeddings, and the one loop over the layers of all encoders.

    Args:
        layer: builds the layer of an index, with the parameters for that place; see :mod:`octavo.layers.encoder`.
        norm: of the last layer's output.
        ropes: rotary tables by the names that layers use.

    Attributes:
        checkpoint_names, module_names: see :class:`CausalLM`.
    """

    checkpoint_names: ClassVar[Mapping[str, str]] = {}
    module_names: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        config: ModelConfig,
        build: Build,
        layer: Callable[[int, Build], nn.Module],
        max_positions: int,
        *,
        norm: LayerNorm | None = None,
        ropes: Mapping[str, RopeConfig] | None = None,
    ) -> None:
        super().__init__()
        build = replace(build, names=CheckpointNames(self.checkpoint_names, self.module_names))
        self.weight_prefix = config.own_as(EncoderFields).prefix
        self.embeddings = EncoderEmbeddings(config)
        self.layers = nn.ModuleList(layer(index, build.at(f"layers.{index}")) for index in range(config.num_layers))
        self.norm = norm
        self.rotary = nn.ModuleDict(
            {name: RotaryEmbedding(config.head_dim, rope, max_positions) for name, rope in (ropes or {}).items()}
        )

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor:
        x: torch.Tensor = self.embeddings(token_ids, positions, segments)
        ropes = {name: rotary(positions) for name, rotary in self.rotary.items()}
        for layer in self.layers:
            x = layer(x, ropes, plan)
        return x if self.norm is None else self.norm(x)


class Encoder(Protocol):
    """What runs sequences laid end to end; see :meth:`EncoderBase.forward`."""

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor: ...


class BidirectionalDecoder:
    """A decoder as an encoder: its layers attend in both directions, and nothing is cached.

    Raises:
        UnsupportedModelError: it has layers that remember in another way than by keys and values.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._windows: dict[str, int | None] = {}
        for name, spec in cache_specs(model).items():
            if not isinstance(spec, Full | SlidingWindow) or isinstance(spec, ChunkedLocal):
                raise UnsupportedModelError(
                    f"The model is to attend in both directions; layers with a {type(spec).__name__} cache cannot."
                )
            self._windows[name] = spec.window if isinstance(spec, SlidingWindow) else None

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor:
        """See :meth:`EncoderBase.forward`; there are no segments."""
        inputs = {name: PackedRows(plan, window) for name, window in self._windows.items()}
        caches = dict.fromkeys(inputs, (token_ids.new_empty(0),))
        return self._model(token_ids, positions, StepContext(BidirectionalAttention(), caches, inputs))


class WithHead(Protocol):
    """A model with its layers under ``model`` and its head under ``lm_head``."""

    model: nn.Module
    lm_head: nn.Module


class PooledModel(nn.Module):
    """A backbone and its pooler.

    Attributes:
        backbone: an :class:`EncoderBase`, or a decoder without its head.
        weight_prefix: optional prefix of the backbone's weight names in checkpoints.
    """

    def __init__(self, backbone: nn.Module, pooler: Pooler, weight_prefix: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooler = pooler
        self.weight_prefix = weight_prefix

    def encoder(self) -> Encoder:
        """What runs the backbone, of a model that attends in both directions."""
        if isinstance(self.backbone, EncoderBase):
            return self.backbone
        assert isinstance(self.backbone, CausalLM)
        return BidirectionalDecoder(self.backbone)


def as_pooled(model: CausalLM, config: ModelConfig) -> PooledModel:
    """Build a generating model without its head, and with a pooler.

    Raises:
        UnsupportedModelError: its family has layers and head under other attributes, or the model is to attend in both
            directions and cannot.
    """
    assert config.pooling is not None, "the configuration of a pooling model"
    # Not isinstance: from Python 3.12 on, protocol checks do not see submodules, which are not plain attributes.
    if not {"model", "lm_head"} <= dict(model.named_children()).keys():
        raise UnsupportedModelError(f"{config.architecture} cannot be used for vectors: it has no head to do without.")
    model.input_embedding.take_back()
    del cast(WithHead, model).lm_head
    pooled = PooledModel(model, Pooler(config.pooling), model.base_prefix).eval()
    if config.is_encoder:
        _ = pooled.encoder()
    return pooled
