"""The encoder layer: bidirectional attention and a feed-forward part, each followed by a norm."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec
from octavo.kernels.packed_attention import PaddedRows, packed_attention
from octavo.layers.build import Build

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class LayerNorm(nn.Module):
    """Layer norm over the last dimension (arXiv:1607.06450)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., size]`` in and out."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class SelfAttention(nn.Module):
    """BERT's self-attention, with BERT's weight names."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        size = config.hidden_size
        heads, _ = build.tensor_parallel.share_of_heads(config.num_heads, config.num_heads)
        head_dim, parts = config.head_dim, {"query": size, "key": size, "value": size}
        self.qkv = build.linear("qkv", size, parts, bias=True, split="column", head_size=head_dim)
        self.spec = AttentionSpec(heads, heads, head_dim, head_dim**-0.5)

    def forward(self, x: torch.Tensor, plan: list[PaddedRows]) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return packed_attention(self.qkv(x), plan, self.spec)


class AddNorm(nn.Module):
    """``norm(residual + dense(x))``."""

    def __init__(self, in_features: int, config: ModelConfig, build: Build) -> None:
        super().__init__()
        self.dense = build.linear("dense", in_features, config.hidden_size, bias=True, split="row")
        self.LayerNorm = LayerNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``[T, in_features]`` and ``[T, hidden]`` to ``[T, hidden]``."""
        return self.LayerNorm(self.dense(x) + residual)


class EncoderAttention(nn.Module):
    """Attention, residual add and norm."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        self.self = SelfAttention(config, build.at("self"))
        self.output = AddNorm(config.hidden_size, config, build.at("output"))

    def forward(self, x: torch.Tensor, plan: list[PaddedRows]) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.output(self.self(x, plan), x)


class FeedForward(nn.Module):
    """The first feed-forward layer and its activation."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        if config.hidden_act not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"The activation {config.hidden_act!r} is not supported; supported are {', '.join(ACTIVATIONS)}."
            )
        self.dense = build.linear("dense", config.hidden_size, config.intermediate_size, bias=True, split="column")
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden] → [T, intermediate]``."""
        return self.activation(self.dense(x))


class EncoderLayer(nn.Module):
    """One block of BERT's encoder (arXiv:1810.04805)."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        self.attention = EncoderAttention(config, build.at("attention"))
        self.intermediate = FeedForward(config, build.at("intermediate"))
        self.output = AddNorm(config.intermediate_size, config, build.at("output"))

    def forward(self, x: torch.Tensor, plan: list[PaddedRows]) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        attended = self.attention(x, plan)
        return self.output(self.intermediate(attended), attended)
