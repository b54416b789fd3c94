"""The model interface that runners use, and the stack of layers that decoders share.

Token ids and positions go in, hidden states and logits come out. A family such as ``qwen3.py`` only describes its
layers; building blocks are in ``octavo/layers``. No family loops over its layers: :class:`LayerStack` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext
from octavo.layers.embedding import Embedding, Head, PositionEmbedding
from octavo.layers.norm import Norm, RMSNorm
from octavo.layers.rotary import MAIN_ROPE, QueryScale, RotaryEmbedding, position_table
from octavo.layers.weights import CheckpointNames
from octavo.records import CacheSpec, Shared


def cache_specs(model: nn.Module) -> dict[str, CacheSpec]:
    """What a model's layers keep in the cache, by name, in the order of the layers; a shared cache counts once."""
    layers = (module for module in model.modules() if isinstance(module, CachedLayer))
    declared = {name: spec for layer in layers for name, spec in layer.cache_specs.items()}
    own = {name: spec for name, spec in declared.items() if not isinstance(spec, Shared)}
    assert all(spec.of in own for spec in declared.values() if isinstance(spec, Shared)), "caches are shared that exist"
    return own


class CausalLM(nn.Module, ABC):
    """A model that predicts the next token. Families derive from it.

    Attributes:
        checkpoint_names: beginnings of attribute names → what checkpoints have in their place; the first that fits
            counts.
        module_names: names of modules, wherever they are in the model → what checkpoints call them.
        base_prefix: beginning of the names in checkpoints of all but the head; checkpoints of the model without a head
            lack it.
        unused_weights: beginnings of the names of tensors that checkpoints have and the model does not need.
    """

    checkpoint_names: ClassVar[Mapping[str, str]] = {}
    module_names: ClassVar[Mapping[str, str]] = {}
    base_prefix: ClassVar[str] = "model."
    unused_weights: tuple[str, ...] = ()

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
        positions: learned vectors that are added to those of the tokens.
        embedding_norm: of the sum.
        entry: makes what the first layer gets, of the embeddings, the token ids and
            :attr:`Embedding.given_places`; None if it gets the embeddings.
    """

    def __init__(
        self,
        embedding: Embedding,
        layers: Iterable[nn.Module],
        norm: Norm,
        rotary: Mapping[str, RotaryEmbedding | QueryScale],
        *,
        positions: PositionEmbedding | None = None,
        embedding_norm: Norm | None = None,
        entry: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embed_tokens = embedding
        self.embed_positions = positions
        self.embed_norm = embedding_norm
        self.entry = entry
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary = nn.ModuleDict(rotary)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See :meth:`CausalLM.forward`."""
        x = self._embed(token_ids, positions)
        if self.entry is not None:
            x = self.entry(x, token_ids, self.embed_tokens.given_places)
        residual: torch.Tensor | None = None
        ropes = {name: rotary(positions) for name, rotary in self.rotary.items()}
        for layer in self.layers:
            x, residual = layer(x, residual, ropes, step)
        return self.norm.enter(x, residual)[0]

    def _embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed_tokens(token_ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        return x if self.embed_norm is None else self.embed_norm(x)


@contextmanager
def few_layers(model: nn.Module) -> Iterator[None]:
    """A context in which a model's stack, if it has one, ends behind its second layer.

    The first layer differs from the others in what it gets, and in some models also in its feed-forward part.
    """
    stacks = [module for module in model.modules() if isinstance(module, LayerStack)]
    whole = [stack.layers for stack in stacks]
    for stack in stacks:
        stack.layers = stack.layers[:2]
    try:
        yield
    finally:
        for stack, layers in zip(stacks, whole, strict=True):
            stack.layers = layers


class DecoderLM(CausalLM):
    """A stack of layers under ``model`` and a head under ``lm_head``: the layout of most checkpoints.

    Args:
        layer: builds the layer of an index, with the parameters for that place.
        norm: makes the final norm of a size and an epsilon.
        embedding_scale, given_scale: see :class:`Embedding`.
        positions, embedding_norm, entry: see :class:`LayerStack`.
        ropes: tables by name; see :func:`position_table`. By default the configuration's rotary embedding alone.
        head_bias, softcap, logit_scale: see :class:`Head`.
    """

    def __init__(
        self,
        config: ModelConfig,
        build: Build,
        layer: Callable[[int, Build], nn.Module],
        max_positions: int,
        *,
        norm: Callable[[int, float], Norm] = RMSNorm,
        embedding_scale: float | None = None,
        given_scale: float | None = None,
        positions: PositionEmbedding | None = None,
        embedding_norm: Norm | None = None,
        entry: nn.Module | None = None,
        ropes: Mapping[str, RopeConfig | QueryScaling | None] | None = None,
        head_bias: bool = False,
        softcap: float | None = None,
        logit_scale: float | None = None,
    ) -> None:
        super().__init__()
        ropes = {MAIN_ROPE: config.rope} if ropes is None else ropes
        build = replace(build, names=CheckpointNames(self.checkpoint_names, self.module_names))
        self.model = LayerStack(
            Embedding(
                config.vocab_size,
                config.hidden_size,
                scheme=build.at("model").embedding_scheme("embed_tokens"),
                scale=embedding_scale,
                given_scale=given_scale,
                tensor_parallel=build.tensor_parallel,
            ),
            (layer(index, build.at(f"model.layers.{index}")) for index in range(config.num_layers)),
            norm(config.hidden_size, config.rms_norm_eps),
            {name: position_table(config.head_dim, rope, max_positions) for name, rope in ropes.items()},
            positions=positions,
            embedding_norm=embedding_norm,
            entry=entry,
        )
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = Head(
            config.vocab_size,
            config.hidden_size,
            build,
            tied=tied,
            bias=head_bias,
            softcap=softcap,
            scale=logit_scale,
        )

    @property
    def input_embedding(self) -> Embedding:
        return self.model.embed_tokens

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.model(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(hidden, out)
