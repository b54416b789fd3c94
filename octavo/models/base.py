"""The model interface that runners use, and the decoder trunk that families share.

Token ids and positions go in, hidden states and logits come out. A family such as ``qwen3.py`` only describes its
layers; building blocks are in ``octavo/layers``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.layers.attention import StepAttention
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer
from octavo.layers.embedding import Embedding, Head
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import RotaryEmbedding


class CausalLM(nn.Module, ABC):
    """A model that predicts the next token. Families derive from it."""

    @abstractmethod
    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
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


class DecoderTrunk(nn.Module):
    """Embedding, pre-norm decoder layers, final norm."""

    def __init__(self, config: ModelConfig, build: Build, layer: Callable[[int], PreNormLayer], max_positions: int):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layer(index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope, max_positions)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """See :meth:`CausalLM.forward`."""
        x = self.embed_tokens(token_ids)
        residual: torch.Tensor | None = None
        rope = self.rotary(positions)
        for layer in self.layers:
            x, residual = layer(x, residual, rope, step)
        assert residual is not None, "a model has at least one layer"
        return self.norm.add(x, residual)[0]


class TrunkLM(CausalLM):
    """A trunk under ``model`` and a head under ``lm_head``: the layout of most checkpoints."""

    def __init__(self, config: ModelConfig, build: Build, layer: Callable[[int], PreNormLayer], max_positions: int):
        super().__init__()
        self.model = DecoderTrunk(config, build, layer, max_positions)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = Head(config.vocab_size, config.hidden_size, build, tied=tied, softcap=config.final_logit_softcap)

    @property
    def input_embedding(self) -> Embedding:
        return self.model.embed_tokens

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        return self.model(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(hidden, out)
