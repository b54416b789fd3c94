"""BERT and RoBERTa: encoders with learned position embeddings."""

import torch
from torch import nn

from octavo.hub.families.bert import BertFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.embedding import Embedding
from octavo.layers.encoder import EncoderLayer, LayerNorm
from octavo.models.pooled import EncoderBackbone


class BertEmbeddings(nn.Module):
    """The normed sum of token, position and segment embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        own, size = config.own_as(BertFields), config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, size)
        self.position_embeddings = Embedding(own.num_positions, size)
        self.token_type_embeddings = Embedding(own.type_vocab_size, size)
        self.LayerNorm = LayerNorm(size, config.rms_norm_eps)
        self.position_offset = own.position_offset
        self.last_segment = own.type_vocab_size - 1

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """``[T]`` int64 each → ``[T, hidden]``."""
        x = self.word_embeddings(token_ids) + self.token_type_embeddings(segments.clamp(max=self.last_segment))
        return self.LayerNorm(x + self.position_embeddings(positions + self.position_offset))


class BertBackbone(EncoderBackbone):
    """BERT (arXiv:1810.04805), or RoBERTa (arXiv:1907.11692), whose positions start after the padding token's id."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        layers = (EncoderLayer(config, build.at(f"encoder.layer.{index}")) for index in range(config.num_layers))
        super().__init__(BertEmbeddings(config), layers, config.own_as(BertFields).prefix)
