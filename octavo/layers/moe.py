"""Feed-forward layers of which each token uses some experts only (mixtures of experts)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from octavo.kernels.experts import experts_mlp
from octavo.layers.mlp import gate_of
from octavo.parallel import TensorParallel
from octavo.quantization.slot import WeightPart, WeightSlot


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts are chosen from its scores, a softmax over all experts.

    Attributes:
        num_experts, num_chosen: in total, and per token.
        num_groups, num_open_groups: experts are chosen from the groups with the highest scores; 1 and 1 for no groups.
        scale: factor on the scores, which weight the experts' outputs.
    """

    num_experts: int
    num_chosen: int
    num_groups: int
    num_open_groups: int
    scale: float


class Router(nn.Module):
    """Scores experts, in float32."""

    def __init__(self, hidden_size: int, routing: Routing) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(routing.num_experts, hidden_size), requires_grad=False)
        self.routing = routing

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each token's experts ``[T, K]`` int64 and their weights, float32, for ``x`` of ``[T, hidden]``."""
        routing = self.routing
        scores = (x.float() @ self.weight.float().T).softmax(-1)
        if routing.num_open_groups < routing.num_groups:
            groups = scores.unflatten(1, (routing.num_groups, -1))
            best = groups.amax(-1).topk(routing.num_open_groups).indices
            is_open = torch.zeros_like(groups[..., 0]).scatter_(1, best, 1.0)
            scores = (groups * is_open[..., None]).flatten(1)
        weights, chosen = scores.topk(routing.num_chosen)
        return chosen, weights * routing.scale


class Experts(nn.Module):
    """The experts' weights, stacked: ``[E, 2·I, hidden]`` and ``[E, hidden, I]``; several devices divide ``I``."""

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        tensor_parallel: TensorParallel,
    ) -> None:
        super().__init__()
        self._tensor_parallel = tensor_parallel
        own = tensor_parallel.share(intermediate_size, "outputs of an expert")
        is_whole, rows = tensor_parallel.size == 1, slice(own.start, own.stop)
        self._up = WeightPart(slice(None), (intermediate_size, hidden_size), () if is_whole else (rows,))
        self._down = WeightPart(slice(None), (hidden_size, intermediate_size), () if is_whole else (slice(None), rows))
        up, down = (num_experts, 2 * len(own), hidden_size), (num_experts, hidden_size, len(own))
        self.gate_up_proj = nn.Parameter(torch.empty(up), requires_grad=False)
        self.down_proj = nn.Parameter(torch.empty(down), requires_grad=False)
        self.activation = gate_of(activation)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`: checkpoints have three tensors for each expert."""
        for index, (gate_up, down) in enumerate(zip(self.gate_up_proj.data, self.down_proj.data, strict=True)):
            gate, up = gate_up.chunk(2)
            for name, part, view in (
                ("gate_proj", self._up, gate),
                ("up_proj", self._up, up),
                ("down_proj", self._down, down),
            ):
                yield f"{path}.{index}.{name}.weight", part.weight_slot(view)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each token's experts: ``[T, hidden]`` in and out; see :class:`Router`."""
        y = experts_mlp(x, self.gate_up_proj, self.down_proj, chosen, weights, self.activation)
        return y if self._tensor_parallel.size == 1 else self._tensor_parallel.all_reduce(y)


class SparseMLP(nn.Module):
    """Chosen experts, and others that all tokens share.

    Args:
        shared: a feed-forward layer for all tokens.
    """

    def __init__(self, gate: Router, experts: Experts, shared: nn.Module) -> None:
        super().__init__()
        self.gate = gate
        self.experts = experts
        self.shared_experts = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        return self.experts(x, *self.gate(x)) + self.shared_experts(x)
