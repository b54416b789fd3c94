"""The pre-norm decoder layer that most families vary: attention and gated feed-forward."""

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec, HeadNorms, RopeTables
from octavo.layers.attention import Attention, StepAttention
from octavo.layers.build import Build
from octavo.layers.linear import Linear, QKVLinear
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm


class RotaryAttention(nn.Module):
    """Grouped-query attention with rotary embedding and optional norms of queries and keys.

    Args:
        norm: the norm of each head's query and key; None for none.
        output_bias: whether the output projection has a bias.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        build: Build,
        *,
        norm: type[RMSNorm] | None = None,
        output_bias: bool = False,
    ) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv_proj = QKVLinear(config.hidden_size, heads, kv_heads, head_dim, build, bias=config.attention_bias)
        self.o_proj = Linear(heads * head_dim, config.hidden_size, build, bias=output_bias)
        self.q_norm = norm(head_dim, config.rms_norm_eps) if norm else None
        self.k_norm = norm(head_dim, config.rms_norm_eps) if norm else None
        scale = (config.query_pre_attn_scalar or head_dim) ** -0.5
        spec = AttentionSpec(heads, kv_heads, head_dim, scale, config.attn_logit_softcap)
        self.attention = Attention(layer, spec)

    def forward(self, x: torch.Tensor, rope: RopeTables, step: StepAttention) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return self.o_proj(self.attention(self.qkv_proj(x), rope, norms, step))


class PreNormLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``: Llama's block."""

    def __init__(self, config: ModelConfig, attention: RotaryAttention, build: Build) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, config.hidden_act, build, bias=config.mlp_bias
        )

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, rope: RopeTables, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's output before it is added to the residual stream, and the stream.

        Args:
            residual: ``[T, hidden]``; None in the first layer, where ``x`` is the stream itself.
        """
        if residual is None:
            normed, residual = self.input_layernorm(x), x
        else:
            normed, residual = self.input_layernorm.add(x, residual)
        attended = self.self_attn(normed, rope, step)
        normed, residual = self.post_attention_layernorm.add(attended, residual)
        return self.mlp(normed), residual
