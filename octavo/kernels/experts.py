"""Feed-forward experts: each token runs through the few that a router chose for it (arXiv:2006.16668)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F

from octavo.kernels.basic import activate, silu_and_mul
from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.dispatch import kernel
from octavo.kernels.linear import GATES
from octavo.kernels.pair_sum import PairSum
from octavo.records.experts import ExpertSpec

ExpertsOp = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | PairSum]
"""The weighted sum of each token's experts: ``x`` of ``[T, hidden]``, each token's experts ``[T, K]`` int64 and their
shares ``[T, K]`` float32 → ``[T, hidden]``, or what that is the sum of. Each token's sum is in float32 and in the order
of its experts."""


class ChoosingExperts(ABC):
    """An :data:`ExpertsOp` whose kernels may choose a token's experts themselves."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor | PairSum:
        """See :data:`ExpertsOp`."""

    @abstractmethod
    def choose_and_run(self, x: torch.Tensor, choice: DeferredChoice) -> torch.Tensor | PairSum:
        """The same for ``x`` of ``[1, hidden]`` and the experts that its logits choose."""


def run_experts(op: ExpertsOp, x: torch.Tensor, choice: Chosen | DeferredChoice) -> torch.Tensor | PairSum:
    """What experts compute for tokens whose experts are chosen, or for one that has its logits."""
    if isinstance(choice, DeferredChoice) and isinstance(op, ChoosingExperts):
        return op.choose_and_run(x, choice)
    chosen, shares = choice
    return op(x, chosen, shares)


class ExpertWeights(NamedTuple):
    """The weights of all experts of a layer.

    Attributes:
        gate_up: ``[E, 2·I, hidden]``, of each expert the gate's rows before those of the up projection.
        down: ``[E, hidden, I]``.
        gate_up_bias, down_bias: ``[E, 2·I]`` and ``[E, hidden]``, or None.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    def of(self, expert: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """One expert's weight and bias of the first GEMM, and of the second."""
        gate_up_bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        down_bias = None if self.down_bias is None else self.down_bias[expert]
        return self.gate_up[expert], gate_up_bias, self.down[expert], down_bias


class GroupedExperts(ABC):
    """Experts that each compute their tokens at once, one expert after another; waits for the device."""

    def __init__(self, num_experts: int, spec: ExpertSpec) -> None:
        self._num_experts = num_experts
        self._spec = spec

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """See :data:`ExpertsOp`."""
        num_chosen = chosen.shape[1]
        pairs = chosen.flatten().argsort(stable=True)  # token · K + place, the first expert's before the second's
        counts = torch.bincount(chosen.flatten(), minlength=self._num_experts).tolist()
        results = x.new_empty(len(pairs), x.shape[1])
        for expert, own in enumerate(pairs.split(counts)):
            if len(own):
                inputs = x[own // num_chosen]
                if self._spec.weighs_inputs:
                    inputs = (inputs * shares.flatten()[own, None]).to(x.dtype)
                results[own] = self.run(expert, inputs)
        by_token = results.unflatten(0, (-1, num_chosen))
        weighted = by_token.float() if self._spec.weighs_inputs else by_token * shares[..., None]
        return reduce(torch.add, weighted.unbind(1)).to(x.dtype)

    @abstractmethod
    def run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """What one expert makes of its tokens, ``[N, hidden]`` in and out."""


class PlainExperts(GroupedExperts):
    """Experts in PyTorch's operations."""

    def __init__(self, weights: ExpertWeights, spec: ExpertSpec) -> None:
        super().__init__(len(weights.gate_up), spec)
        self._weights = weights

    def run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        gate_up, gate_up_bias, down, down_bias = self._weights.of(expert)
        return F.linear(apply_gate(F.linear(x, gate_up, gate_up_bias), self._spec), down, down_bias)


@kernel
def make_experts(
    gate_up: torch.Tensor, weights: ExpertWeights, spec: ExpertSpec, *, deterministic: bool = False
) -> ExpertsOp:
    """The fastest form of a layer's experts, called once their weights are loaded.

    Args:
        gate_up: the tensor in ``weights``, whose device selects the form.
        weights: may be overwritten, and are then read by the returned operation alone.
        deterministic: whether a token's bits must not depend on the other tokens.
    """
    return PlainExperts(weights, spec)


def apply_gate(gate_up: torch.Tensor, spec: ExpertSpec) -> torch.Tensor:
    """An expert's activation, ``[N, 2·I] → [N, I]``; see :class:`ExpertSpec`."""
    if spec.activation in GATES:
        return GATES[spec.activation](gate_up)
    gate, up = gate_up.float().chunk(2, -1)
    up = up.clamp(-spec.limit, spec.limit)
    if spec.activation == "swiglu_step":
        gate = activate(gate.contiguous(), "silu")
        return (gate.clamp(max=spec.limit) * up).to(gate_up.dtype)
    gate = gate.clamp(max=spec.limit)
    if spec.activation == "clamped_silu":
        return silu_and_mul(torch.cat((gate, up), -1)).to(gate_up.dtype)
    # gate · sigmoid(alpha · gate) is silu(alpha · gate) / alpha, for which devices have a kernel.
    return silu_and_mul(torch.cat((spec.alpha * gate, (up + 1) / spec.alpha), -1)).to(gate_up.dtype)
