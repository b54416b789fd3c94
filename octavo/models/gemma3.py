"""Gemma 3 (text): interleaved local and global attention layers, norms before and after each part."""

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import RopeTables
from octavo.layers.attention import StepAttention
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.embedding import Embedding, Head
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import UnitOffsetRMSNorm
from octavo.layers.rotary import RotaryEmbedding
from octavo.models.base import CausalLM


class Gemma3Layer(nn.Module):
    """Attention and feed-forward, each with a norm before and after."""

    def __init__(self, config: ModelConfig, index: int, build: Build) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = UnitOffsetRMSNorm(size, eps)
        self.self_attn = RotaryAttention(
            config, index, build, norm=UnitOffsetRMSNorm, output_bias=config.attention_bias
        )
        self.post_attention_layernorm = UnitOffsetRMSNorm(size, eps)
        self.pre_feedforward_layernorm = UnitOffsetRMSNorm(size, eps)
        self.mlp = GatedMLP(size, config.intermediate_size, config.hidden_act, build)
        self.post_feedforward_layernorm = UnitOffsetRMSNorm(size, eps)

    def forward(self, x: torch.Tensor, rope: RopeTables, step: StepAttention) -> torch.Tensor:
        """``[T, hidden]`` in and out, residual stream included."""
        attended = self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope, step))
        normed, x = self.pre_feedforward_layernorm.add(attended, x)
        return x + self.post_feedforward_layernorm(self.mlp(normed))


class Gemma3Trunk(nn.Module):
    """Scaled embedding, layers with one rotary table per kind of attention, final norm."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, scale=config.hidden_size**0.5)
        self.layers = nn.ModuleList(Gemma3Layer(config, index, build) for index in range(config.num_layers))
        self.norm = UnitOffsetRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope, max_positions)
        self.local_rotary = RotaryEmbedding(config.head_dim, config.local_rope or config.rope, max_positions)
        self.is_local = [kind == "sliding_attention" for kind in config.layer_types]

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """See :meth:`CausalLM.forward`."""
        x = self.embed_tokens(token_ids)
        rope, local_rope = self.rotary(positions), self.local_rotary(positions)
        for layer, is_local in zip(self.layers, self.is_local, strict=True):
            x = layer(x, local_rope if is_local else rope, step)
        return self.norm(x)


class Gemma3ForCausalLM(CausalLM):
    """arXiv:2503.19786."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__()
        self.model = Gemma3Trunk(config, build, max_positions)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = Head(config.vocab_size, config.hidden_size, build, tied=tied, softcap=config.final_logit_softcap)

    @property
    def input_embedding(self) -> Embedding:
        return self.model.embed_tokens

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        return self.model(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(hidden, out)
