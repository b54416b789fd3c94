"""The model interface that runners use, and the stack of layers that decoders share.

Token ids and positions go in, hidden states and logits come out. A family such as ``qwen3.py`` only describes its
layers; building blocks are in ``octavo/layers``. No family loops over its layers: :class:`LayerStack` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext
from octavo.layers.embedding import Embedding, Head
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE, RotaryEmbedding
from octavo.records import CacheSpec


def cache_specs(model: nn.Module) -> dict[str, CacheSpec]:
    """What a model's layers keep in the cache, by name, in the order of the layers."""
    layers = (module for module in model.modules() if isinstance(module, CachedLayer))
    return {name: spec for layer in layers for name, spec in layer.cache_specs.items()}


class CausalLM(nn.Module, ABC):
    """A model that predicts the next token. Families derive from it.

    Attributes:
        checkpoint_names: beginnings of attribute names → what checkpoints have in their place; the first that fits
            counts.
    """

    checkpoint_names: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Run the layers.

        Args:
            token_ids, positions: ``[T]`` int64.

        Returns:
            ``[T, hidden]``, after the final norm.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, into ``out`` if it is given."""

    @property
    @abstractmethod
    def input_embedding(self) -> Embedding:
        """The embedding layer."""


class LayerStack(nn.Module):
    """Embedding, layers, final norm: the one loop over the layers of all decoders.

    Args:
        layers: built in order; see :mod:`octavo.layers.decoder` for what a layer takes and returns.
        rotary: rotary tables by the names that layers use; each is read once per step.
    """

    def __init__(
        self,
        embedding: Embedding,
        layers: Iterable[nn.Module],
        norm: RMSNorm,
        rotary: Mapping[str, RotaryEmbedding],
    ) -> None:
        super().__init__()
        self.embed_tokens = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary = nn.ModuleDict(rotary)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See :meth:`CausalLM.forward`."""
        x = self.embed_tokens(token_ids)
        residual: torch.Tensor | None = None
        ropes = {name: rotary(positions) for name, rotary in self.rotary.items()}
        for layer in self.layers:
            x, residual = layer(x, residual, ropes, step)
        assert residual is not None, "a model has at least one layer"
        return self.norm.add(x, residual)[0]


class DecoderLM(CausalLM):
    """A stack of layers under ``model`` and a head under ``lm_head``: the layout of most checkpoints.

    Args:
        layer: builds the layer of an index, with the parameters for that place.
        norm: class of the final norm.
        embedding_scale: see :class:`Embedding`.
        ropes: rotary tables by name; None for the configuration's alone.
        softcap: logits become ``c · tanh(logits / c)``.
    """

    def __init__(
        self,
        config: ModelConfig,
        build: Build,
        layer: Callable[[int, Build], nn.Module],
        max_positions: int,
        *,
        norm: type[RMSNorm] = RMSNorm,
        embedding_scale: float | None = None,
        ropes: Mapping[str, RopeConfig] | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        ropes = {MAIN_ROPE: config.rope} if ropes is None else ropes
        self.model = LayerStack(
            Embedding(
                config.vocab_size, config.hidden_size, scale=embedding_scale, tensor_parallel=build.tensor_parallel
            ),
            (layer(index, build.at(f"model.layers.{index}")) for index in range(config.num_layers)),
            norm(config.hidden_size, config.rms_norm_eps),
            {name: RotaryEmbedding(config.head_dim, rope, max_positions) for name, rope in ropes.items()},
        )
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = Head(config.vocab_size, config.hidden_size, build, tied=tied, softcap=softcap)

    @property
    def input_embedding(self) -> Embedding:
        return self.model.embed_tokens

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.model(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(hidden, out)
