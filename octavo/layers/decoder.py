"""Decoder layers: norms around an attention module and a feed-forward module, and the usual attention module.

A layer gets ``x``, the output of the layer before it, and ``residual``, the stream to which ``x`` is still to be added,
so that each addition shares a kernel with the norm after it. It returns the same pair. Attention modules take
``(x, ropes, step)`` and feed-forward modules ``x``; both return what is added to the stream.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec, HeadNorms, RopeTables
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE


class RotaryAttention(nn.Module):
    """Grouped-query attention with rotary embedding and optional norms of queries and keys.

    Args:
        layer: index of the layer in the model.
        rope: name of the layer's rotary table.
        head_norm: the norm of each head's query and key; None for none.
        scale: factor on attention scores; None is one over the root of the head size.
        softcap: scores become ``c · tanh(score / c)``.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        build: Build,
        *,
        rope: str = MAIN_ROPE,
        head_norm: type[RMSNorm] | None = None,
        qkv_bias: bool = False,
        output_bias: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        own_heads, own_kv_heads = build.tensor_parallel.share_of_heads(heads, kv_heads)
        sizes = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
        self.qkv_proj = build.linear(
            "qkv_proj", config.hidden_size, sizes, bias=qkv_bias, split="column", head_size=head_dim
        )
        self.o_proj = build.linear("o_proj", heads * head_dim, config.hidden_size, bias=output_bias, split="row")
        self.q_norm = head_norm(head_dim, config.rms_norm_eps) if head_norm else None
        self.k_norm = head_norm(head_dim, config.rms_norm_eps) if head_norm else None
        self.rope = rope
        spec = AttentionSpec(own_heads, own_kv_heads, head_dim, head_dim**-0.5 if scale is None else scale, softcap)
        window = config.sliding_window if config.layer_types[layer] == "sliding_attention" else None
        self.attention = Attention(build.name, spec, window)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return self.o_proj(self.attention(self.qkv_proj(x), ropes[self.rope], norms, step))


class PreNormLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``: Llama's layer.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = feed_forward

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's output before it is added to the residual stream, and the stream.

        Args:
            x: ``[T, hidden]``.
            residual: ``[T, hidden]``; None in the first layer, where ``x`` is the stream itself.
            ropes: rows of the rotary tables at the tokens' positions, by table name.
        """
        normed, residual = _add_norm(self.input_layernorm, x, residual)
        normed, residual = self.post_attention_layernorm.add(self.self_attn(normed, ropes, step), residual)
        return self.mlp(normed), residual


class MixerLayer(nn.Module):
    """``x + mixer(norm(x))``: a layer without a feed-forward part.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, mixer: nn.Module, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        self.norm = norm()
        self.mixer = mixer

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        normed, residual = _add_norm(self.norm, x, residual)
        return self.mixer(normed, ropes, step), residual


class SandwichNormLayer(nn.Module):
    """``x + norm(attention(norm(x)))``, then the same with the feed-forward module: Gemma's layer since version 2.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norm()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        normed, residual = _add_norm(self.input_layernorm, x, residual)
        attended = self.post_attention_layernorm(self.self_attn(normed, ropes, step))
        normed, residual = self.pre_feedforward_layernorm.add(attended, residual)
        return self.post_feedforward_layernorm(self.mlp(normed)), residual


def _add_norm(norm: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The normed stream after ``x`` is added to it, and the stream."""
    return (norm(x), x) if residual is None else norm.add(x, residual)
