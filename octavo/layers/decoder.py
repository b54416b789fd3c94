"""Decoder layers: norms around an attention module and a feed-forward module, and the usual attention module.

A layer gets ``x``, the output of the layer before it, and ``residual``, the stream to which ``x`` is still to be added,
so that each addition shares a kernel with the norm after it, or with the GEMM before that
(:class:`octavo.kernels.DeferredOutput`). It returns the same pair. Attention modules take
``(x, ropes, step)`` and feed-forward modules ``x``; both return what is added to the stream.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import NO_TERMS, AttentionSpec, DeferredNorm, DeferredOutput, HeadNorms, RopeTables
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.head_terms import AttentionTerms
from octavo.layers.linear import defer_output
from octavo.layers.moe import SparseMLP
from octavo.layers.norm import Norm, RMSNorm
from octavo.layers.qkv import QKVOrder
from octavo.layers.rotary import MAIN_ROPE
from octavo.parallel import Section


class RotaryAttention(nn.Module):
    """Grouped-query attention with rotary embedding and optional norms of queries and keys.

    Args:
        layer: index of the layer in the model.
        rope: name of the layer's rotary table.
        head_norm: the norm of each head's query and key; None for none.
        scale: factor on attention scores; None is one over the root of the head size.
        softcap: scores become ``c · tanh(score / c)``.
        terms: attention sinks or ALiBi's slopes; None for neither.
        is_fused: whether checkpoints have queries, keys and values as one layer ``qkv_proj``.
        fused_order: how that layer's outputs are stored; None if all queries come before all keys before all values.
        is_interleaved: whether checkpoints have rotary pairs ``(2i, 2i + 1)``; not together with ``head_norm``.
        chunk: queries attend within chunks of so many tokens; None for layers that do not.
    """

    takes_deferred_norms = True

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
        is_fused: bool = False,
        fused_order: QKVOrder | None = None,
        is_interleaved: bool = False,
        terms: AttentionTerms | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        own_heads, own_kv_heads = build.tensor_parallel.share_of_heads(heads, kv_heads)
        assert not (is_interleaved and head_norm), "weights of norms are not reordered"
        interleaved = config.rope.rotary_dim(head_dim) if is_interleaved else 0
        sections = {
            "q_proj": Section(heads * head_dim, head_dim, interleaved),
            "k_proj": Section(kv_heads * head_dim, head_dim, interleaved),
            "v_proj": Section(kv_heads * head_dim, head_dim),
        }
        parts = list(sections.values()) if is_fused else sections
        rows = fused_order(heads, kv_heads, head_dim) if fused_order else None
        self.qkv_proj = build.linear("qkv_proj", config.hidden_size, parts, bias=qkv_bias, split="column", rows=rows)
        self.o_proj = build.linear("o_proj", heads * head_dim, config.hidden_size, bias=output_bias, split="row")
        self.q_norm = head_norm(head_dim, config.rms_norm_eps) if head_norm else None
        self.k_norm = head_norm(head_dim, config.rms_norm_eps) if head_norm else None
        self.rope = rope
        self.head_dim = head_dim
        self.sizes = own_heads * head_dim, own_kv_heads * head_dim, own_kv_heads * head_dim
        spec = AttentionSpec(own_heads, own_kv_heads, head_dim, head_dim**-0.5 if scale is None else scale, softcap)
        window = config.sliding_window if config.layer_types[layer] == "sliding_attention" else None
        self.attention = Attention(build.name, spec, build, window, chunk=chunk)
        self.terms = terms

    def forward(
        self, x: torch.Tensor | DeferredNorm, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        terms = NO_TERMS if self.terms is None else self.terms.values()
        return self.o_proj(self.attention(*self.prepare(self.qkv_proj(x), ropes), step, terms))

    @property
    def last_layer(self) -> nn.Module:
        """See :class:`octavo.layers.linear.EndsInLayer`."""
        return self.o_proj

    @property
    def head_norms(self) -> HeadNorms | None:
        """The norms of each head's query and key."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """What the attention's kernels start from; subclasses change queries and keys here.

        Args:
            qkv: ``[T, (H + 2·Hkv)·D]``, of the :attr:`sizes` one after another; may be overwritten.

        Returns:
            The same, contiguous, and how the kernels still have to rotate and norm it.
        """
        return qkv, ropes[self.rope], self.head_norms


class PreNormLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``: Llama's layer.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = feed_forward
        # Not before a mixture of experts, whose router reads rows that are normed.
        if defer_output(feed_forward):
            defer_output(attention)
        elif isinstance(feed_forward, SparseMLP):
            feed_forward.defer_sum()

    def forward(
        self,
        x: torch.Tensor | DeferredOutput,
        residual: torch.Tensor | None,
        ropes: Mapping[str, RopeTables],
        step: StepContext,
    ) -> tuple[torch.Tensor | DeferredOutput, torch.Tensor]:
        """The layer's output before it is added to the residual stream, and the stream.

        Args:
            x: ``[T, hidden]``.
            residual: ``[T, hidden]``; None in the first layer, where ``x`` is the stream itself.
            ropes: rows of the rotary tables at the tokens' positions, by table name.
        """
        attended, residual = self.input_layernorm.into(self.self_attn, x, residual, ropes, step)
        return self.post_attention_layernorm.into(self.mlp, attended, residual)


class MixerLayer(nn.Module):
    """``x + mixer(norm(x))``: a layer without a feed-forward part.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, mixer: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.norm = norm()
        self.mixer = mixer

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        return self.norm.into(self.mixer, x, residual, ropes, step)


class SandwichNormLayer(nn.Module):
    """``x + norm(attention(norm(x)))``, then the same with the feed-forward module: Gemma's layer since version 2.

    Args:
        norm: makes a norm of the hidden size.
        post_norm: the same for what is added to the stream; None is ``norm``.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm: Callable[[], Norm],
        post_norm: Callable[[], Norm] | None = None,
    ) -> None:
        super().__init__()
        post_norm = post_norm or norm
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = post_norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = post_norm()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        attended, residual = self.input_layernorm.into(self.self_attn, x, residual, ropes, step)
        added, residual = self.pre_feedforward_layernorm.into(
            self.mlp, self.post_attention_layernorm(attended), residual
        )
        return self.post_feedforward_layernorm(added), residual


class PostNormLayer(nn.Module):
    """``x + norm(attention(x))``, then ``x + norm(feed_forward(x))``: OLMo's layer since version 2.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norm()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        stream = x if residual is None else residual.add_(x)
        stream.add_(self.post_attention_layernorm(self.self_attn(stream, ropes, step)))
        return self.post_feedforward_layernorm(self.mlp(stream)), stream
