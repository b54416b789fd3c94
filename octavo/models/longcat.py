"""LongCat-Flash: layers of two attention and two feed-forward parts, with experts on a shortcut past the second one."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import ClassVar

import torch
from torch import nn

from octavo.hub.families.deepseek import DeepseekFields
from octavo.hub.families.experts import ExpertFields
from octavo.hub.model_config import ModelConfig
from octavo.kernels import RopeTables
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import feed_forward
from octavo.layers.norm import Norm, RMSNorm
from octavo.models.base import DecoderLM
from octavo.models.deepseek import latent_attention


class LongcatFlashForCausalLM(DecoderLM):
    """arXiv:2509.01322."""

    module_names: ClassVar[Mapping[str, str]] = {"gate": "router.classifier"}

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(DeepseekFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        mlp = partial(GatedMLP, config.hidden_size, config.intermediate_size, config.hidden_act)

        def layer(index: int, build: Build) -> nn.Module:
            return ShortcutLayer(
                [latent_attention(config, own, build.at(f"self_attn.{half}")) for half in range(2)],
                [mlp(build.at(f"mlps.{half}")) for half in range(2)],
                feed_forward(config, own.experts, index, build.at("mlp")),
                norm,
            )

        super().__init__(config, build, layer, max_positions)
        self.unused_weights = ("model.mtp.", *_identity_gates(config, own.experts))


def _identity_gates(config: ModelConfig, fields: ExpertFields) -> Iterator[str]:
    """The names of experts without work, for which transformers writes gates and up projections all the same."""
    num_experts = fields.routing.num_experts
    for layer, expert in product(range(config.num_layers), range(num_experts - fields.num_identity, num_experts)):
        yield f"model.layers.{layer}.mlp.experts.{expert}."


class ShortcutLayer(nn.Module):
    """Two of Llama's layers; what experts make of the first one's normed attention is added behind the second one.

    Args:
        norm: makes a norm of the hidden size.
    """

    def __init__(
        self, attention: list[nn.Module], mlps: list[nn.Module], experts: nn.Module, norm: Callable[[], Norm]
    ) -> None:
        super().__init__()
        self._norms = [(norm(), norm()) for _ in attention]
        self.input_layernorm = nn.ModuleList(before for before, _ in self._norms)
        self.self_attn = nn.ModuleList(attention)
        self.post_attention_layernorm = nn.ModuleList(behind for _, behind in self._norms)
        self.mlps = nn.ModuleList(mlps)
        self.mlp = experts

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`octavo.layers.decoder.PreNormLayer.forward`."""
        normed, residual = self._attend(0, x, residual, ropes, step)
        shortcut = self.mlp(normed)
        normed, residual = self._attend(1, self.mlps[0](normed), residual, ropes, step)
        return self.mlps[1](normed) + shortcut, residual

    def _attend(
        self,
        half: int,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        ropes: Mapping[str, RopeTables],
        step: StepContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A half's normed input of its feed-forward part, and the stream."""
        before, behind = self._norms[half]
        attended, residual = before.into(self.self_attn[half], x, residual, ropes, step)
        return behind.add(attended, residual)
