"""Octavo's experts in the place of the library's, and the library's experts interface for the others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import (
    ALL_EXPERTS_FUNCTIONS,
    _default_apply_gate,
    batched_mm_experts_forward,
    grouped_mm_experts_forward,
)

from octavo.errors import UnsupportedModelError
from octavo.layers.experts import Experts
from octavo.layers.moe import Router
from octavo.models.generic.behaviour import gate_of_activation
from octavo.models.generic.lazy import as_rows, value_of
from octavo.parallel import TensorParallel
from octavo.platforms import runtime_of
from octavo.quantization.grouped_weight import Layout
from octavo.records.experts import ExpertSpec, StackedExperts

FIRST_DOWN_LAYER = "0.down_proj"
_DOWN_LAYERS = (FIRST_DOWN_LAYER, "0.w2", "down_proj")
"""What checkpoints call the second layer of the first expert, or of all experts."""
EXPERTS = "octavo"
"""The name under which the library's interface knows the functions for its own experts."""


class TokenExperts(Experts):
    """The library's gated experts with stacked weights, ``[E, 2·I, hidden]`` and ``[E, hidden, I]``.

    Args:
        module: the library's.
        name: the module's own name, without those around it.
        gate: name of the gated activation in kernels.
        deterministic: whether a token's bits must not depend on the other tokens.
        layout: how the checkpoint stores the experts' layers if they are quantised, which is rejected.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        gate: str,
        tensor_parallel: TensorParallel,
        *,
        deterministic: bool,
        layout: Layout | None = None,
    ) -> None:
        num_experts, hidden_size, size = module.get_parameter("down_proj").shape
        storage = StackedExperts(f"{name}.gate_up_proj", f"{name}.down_proj")
        sizes = num_experts, hidden_size, size
        super().__init__(*sizes, ExpertSpec(gate), storage, tensor_parallel, deterministic=deterministic)
        self._layout = layout

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :meth:`Experts.fit`.

        Raises:
            UnsupportedModelError: the checkpoint's experts are quantised.
        """
        if self._layout is not None and any(self._layout.is_found(f"{path}.{name}", has) for name in _DOWN_LAYERS):
            raise UnsupportedModelError(
                f"The checkpoint's {path} are quantised ({self._layout.name}), which is not supported for models that "
                "the transformers library implements."
            )
        super().fit(path, has)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """See :meth:`Experts.forward`; the library's routers score in any type."""
        return super().forward(value_of(x), chosen, shares.float())


class TokenRouter(Router):
    """The choice of experts, for the library's code that goes on with it but not with logits."""

    def forward(self, x: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """None for the logits, then :meth:`Router.forward`'s results in the library's order."""
        chosen, shares = super().forward(as_rows(x))
        return None, shares, chosen


def gate_of_experts(module: Any) -> str | None:
    """The kernels' gate of a module that :class:`TokenExperts` can stand in for; None for others."""
    if not {"has_gate", "is_concatenated", "is_transposed"} <= vars(module).keys():
        return None
    is_usual = module.has_gate and module.is_concatenated and type(module)._apply_gate is _default_apply_gate
    has_more = module.is_transposed or module.has_bias or module.has_post_expert_norm
    names = {name for name, _ in module.named_parameters()}
    if not is_usual or has_more or names != {"gate_up_proj", "down_proj"}:
        return None
    return gate_of_activation(module.act_fn)


def _experts(experts: Any, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Experts of other forms, by the library's grouped GEMMs.

    Those of a trace go by an operation without values, and so do types whose grouped GEMMs on a GPU wait for the host.
    """
    is_grouped = not x.is_meta and (x.dtype is torch.bfloat16 or runtime_of(x.device).is_host)
    forward = grouped_mm_experts_forward if is_grouped else batched_mm_experts_forward
    y: torch.Tensor = forward(experts, x, chosen, weights)
    return y


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
