"""Feed-forward experts: each token runs through the few that a router chose for it (arXiv:2006.16668)."""

import torch

from octavo.kernels.basic import gelu_tanh_and_mul, silu_and_mul
from octavo.kernels.dispatch import kernel

_GATES = {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}


@kernel
def experts_mlp(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """The weighted sum of each token's experts, one expert after another; waits for the device.

    Args:
        x: ``[T, hidden]``.
        gate_up: ``[E, 2·I, hidden]``.
        down: ``[E, hidden, I]``.
        chosen: ``[T, K]`` int64, each token's experts.
        weights: ``[T, K]`` float32.
        activation: ``silu`` or ``gelu_tanh``.

    Returns:
        ``[T, hidden]``.
    """
    output = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        tokens, place = (chosen == expert).nonzero(as_tuple=True)
        inner = _GATES[activation](x[tokens] @ gate_up[expert].T)
        output.index_add_(0, tokens, ((inner @ down[expert].T) * weights[tokens, place, None]).to(x.dtype))
    return output


def experts_mlp_of_all(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """The same without waiting for the device, as captured graphs need it: every expert computes every token."""
    output = torch.zeros_like(x)
    for expert in range(len(gate_up)):
        share = torch.where(chosen == expert, weights, 0).sum(1, keepdim=True)
        inner = _GATES[activation](x @ gate_up[expert].T)
        output += ((inner @ down[expert].T) * share).to(x.dtype)
    return output
