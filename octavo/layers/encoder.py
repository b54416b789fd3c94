"""Encoder layers: bidirectional attention and a feed-forward part, with norms after them (BERT) or before (ModernBERT).

Layers have names of their own; models say what checkpoints call them (``checkpoint_names``, ``module_names``).
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import nn

from octavo.hub.encoder_config import EncoderFields
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec, RopeTables, activate
from octavo.kernels.packed_attention import PackedPlan, packed_attention
from octavo.layers.activation import activation_kind
from octavo.layers.build import Build
from octavo.layers.embedding import Embedding
from octavo.layers.norm import LayerNorm
from octavo.parallel import Section

Gating = Literal["none", "gate and up", "gate_up", "up_gate"]
"""Whether a feed-forward part is gated; if so, whether checkpoints have two layers or one, and its order."""


class EncoderEmbeddings(nn.Module):
    """The normed sum of token, position and segment embeddings, as far as the model has them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        own, size = config.own_as(EncoderFields), config.hidden_size
        self.words = Embedding(config.vocab_size, size)
        self.positions = Embedding(own.num_positions, size) if own.num_positions else None
        self.segments = Embedding(own.type_vocab_size, size) if own.type_vocab_size else None
        self.norm = LayerNorm(size, config.rms_norm_eps, has_bias=own.norm_bias)
        self.position_offset = own.position_offset
        self.last_segment = own.type_vocab_size - 1

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """``[T]`` int64 each → ``[T, hidden]``."""
        x = self.words(token_ids)
        if self.segments is not None:
            x = x + self.segments(segments.clamp(max=self.last_segment))
        if self.positions is not None:
            x = x + self.positions(positions + self.position_offset)
        return self.norm(x)


class EncoderAttention(nn.Module):
    """Attention of every token to all tokens of its text, or to those near it.

    Args:
        qkv_names: names of the three layers in checkpoints; None if they are stored as one.
        rope: name of the rotary table; None for none.
        window: number of tokens on each side that a token attends to, itself included; None for all.
    """

    def __init__(
        self,
        config: ModelConfig,
        build: Build,
        *,
        qkv_names: tuple[str, str, str] | None = None,
        rope: str | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        size, head_dim, bias = config.hidden_size, config.head_dim, config.own_as(EncoderFields).attention_bias
        heads, _ = build.tensor_parallel.share_of_heads(config.num_heads, config.num_heads)
        parts = [Section(size, head_dim)] * 3 if qkv_names is None else dict.fromkeys(qkv_names, size)
        self.qkv = build.linear("qkv", size, parts, bias=bias, split="column", head_size=head_dim)
        self.output = build.linear("output", size, size, bias=bias, split="row")
        self.spec = AttentionSpec(heads, heads, head_dim, head_dim**-0.5)
        self.rope = rope
        self.window = window

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], plan: PackedPlan) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        rope = None if self.rope is None else ropes[self.rope]
        return self.output(packed_attention(self.qkv(x), plan, self.spec, self.window, rope))


class EncoderMLP(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) · up(x))`` (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, build: Build, gating: Gating = "none") -> None:
        super().__init__()
        own, hidden, size = config.own_as(EncoderFields), config.hidden_size, config.intermediate_size
        parts: int | Mapping[str, int] | list[Section] = [Section(size), Section(size)]
        if gating in ("none", "gate and up"):
            parts = size if gating == "none" else {"gate": size, "up": size}
        self.up = build.linear("up", hidden, parts, bias=own.up_bias, split="column")
        self.down = build.linear("down", size, hidden, bias=own.down_bias, split="row")
        self.activation = activation_kind(config.hidden_act)
        self.gating = gating

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        x = self.up(x)
        if self.gating == "none":
            return self.down(activate(x, self.activation))
        gate, up = x.chunk(2, dim=-1)
        if self.gating == "up_gate":
            gate, up = up, gate
        return self.down(activate(gate, self.activation, up))


class PostNormEncoderLayer(nn.Module):
    """``x = norm(x + attention(x))``, then the same with the feed-forward part: BERT's layer (arXiv:1810.04805)."""

    def __init__(self, config: ModelConfig, attention: EncoderAttention, mlp: EncoderMLP) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = LayerNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp
        self.mlp_norm = LayerNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], plan: PackedPlan) -> torch.Tensor:
        """``[T, hidden]`` in and out.

        Args:
            ropes: rows of the rotary tables at the tokens' positions, by table name.
        """
        x, _ = self.attention_norm.add(self.attention(x, ropes, plan), x)
        x, _ = self.mlp_norm.add(self.mlp(x), x)
        return x


class PreNormEncoderLayer(nn.Module):
    """``x += attention(norm(x))``, ``x += feed_forward(norm(x))``.

    Args:
        is_first: the first layer's input is normed already.
    """

    def __init__(self, config: ModelConfig, attention: EncoderAttention, mlp: EncoderMLP, *, is_first: bool) -> None:
        super().__init__()
        norm = partial(
            LayerNorm, config.hidden_size, config.rms_norm_eps, has_bias=config.own_as(EncoderFields).norm_bias
        )
        self.attention_norm = None if is_first else norm()
        self.attention = attention
        self.mlp_norm = norm()
        self.mlp = mlp

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], plan: PackedPlan) -> torch.Tensor:
        """See :meth:`PostNormEncoderLayer.forward`."""
        normed = x if self.attention_norm is None else self.attention_norm(x)
        normed, x = self.mlp_norm.add(self.attention(normed, ropes, plan), x)
        return x + self.mlp(normed)
