"""The choice of each token's experts (arXiv:2101.03961); everything is computed in float32."""

from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F

from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.deferred_norm import DeferredNorm, rows_of
from octavo.kernels.dispatch import kernel
from octavo.records.experts import Routing

_LEAST_SUM = 1e-20
_WORD = 0xFFFFFFFF


LogitsOp = Callable[[torch.Tensor], torch.Tensor]
"""A logit for each token and expert, accumulated in float32: ``[T, hidden]`` of any type → ``[T, E]`` float32."""


@kernel
def make_logits(weight: torch.Tensor, bias: torch.Tensor | None) -> LogitsOp:
    """The fastest form of a router's GEMM, called once its weights are loaded.

    Args:
        weight, bias: ``[E, hidden]`` and ``[E]``, float32; the bias may be None.
    """
    return lambda x: F.linear(x.float(), weight, bias)


RouterOp = Callable[[torch.Tensor | DeferredNorm], Chosen | DeferredChoice]
"""Each token's experts and their weights, ``[T, K]`` int64 and float32, for ``x`` of ``[T, hidden]``."""


@kernel
def make_router(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    correction: torch.Tensor | None,
    routing: Routing,
    *,
    deterministic: bool = False,
) -> RouterOp:
    """The fastest form of logits and choice together, called once the router's weights are loaded.

    Args:
        weight, bias: see :func:`make_logits`.
        correction: see :func:`choose_experts`.
        deterministic: whether a row's bits must not depend on the other rows, a deferred norm's as well.
    """
    logits = make_logits(weight, bias)
    return lambda x: choose_experts(logits(rows_of(x)), correction, routing)


@kernel
def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The sigmoid of each value, the same bits wherever in ``x`` it stands.

    PyTorch's own on a CPU has other instructions for whole vectors than for what is left at the end of a thread's part.
    A softmax goes row by row.
    """
    return torch.stack((x, torch.zeros_like(x)), -1).softmax(-1)[..., 0]


@kernel
def softplus(x: torch.Tensor) -> torch.Tensor:
    """``log(1 + exp(x))`` of each value, the same bits wherever it stands; see :func:`sigmoid`."""
    return -torch.stack((x, torch.zeros_like(x)), -1).log_softmax(-1)[..., 1]


@kernel
def choose_experts(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts, the best first and of equal ones the first, and their weights.

    Args:
        logits: ``[T, E]`` float32.
        correction: ``[E]`` float32, added to scores in the choice; see :attr:`Routing.is_corrected`.

    Returns:
        ``[T, K]`` int64, and ``[T, K]`` float32.
    """
    if routing.score == "sparsemixer":
        return _mix_sparsely(logits, routing)
    scores = _SCORES[routing.score](logits)
    ranking = scores if correction is None else scores + correction
    if routing.num_open_groups < routing.num_groups:
        ranking = _only_open_groups(ranking, routing)
    chosen = _highest(ranking, routing.num_chosen)
    weights = scores.gather(1, chosen)
    if routing.renormalises:
        total = reduce(torch.add, weights.unbind(1))  # PyTorch's sum has an order for each shape
        weights = weights / (total[:, None] + _LEAST_SUM)
    return chosen, weights * routing.scale


@kernel
def split_identities(
    chosen: torch.Tensor, shares: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put real experts in the place of those that return what they get.

    In their place, the highest of the token's other experts computes with a share of 0, so that no further weights are
    read.

    Args:
        chosen, shares: ``[T, K]`` int64 and float32.
        first: number of the first expert that returns what it gets.

    Returns:
        ``[T, K]`` int64 and float32, and ``[T, 1]``: the share of what the token's others return.
    """
    is_identity = chosen >= first
    kept = reduce(torch.add, shares.where(is_identity, 0).unbind(1))  # PyTorch's sum has an order for each shape
    real = chosen.masked_fill(is_identity, 0)
    real = real.where(~is_identity, real.amax(1, keepdim=True))
    return real, shares.masked_fill(is_identity, 0), kept[:, None]


def _only_open_groups(ranking: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The ranking ``[T, E]`` with minus infinity outside the groups that rank highest."""
    groups = ranking.unflatten(1, (routing.num_groups, -1))
    best = _highest(groups.topk(routing.num_ranked).values.sum(-1), routing.num_open_groups)
    is_closed = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return groups.masked_fill(is_closed[..., None], float("-inf")).flatten(1)


def _highest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Where the highest values of each row are, in their order; of equal ones the first come first.

    ``topk`` leaves the order of equal values open, but is five times as fast as a stable sort.
    """
    best, places = values.topk(min(count + 1, values.shape[1]))
    if not bool((best[:, 1:] < best[:, :-1]).all()):
        places = values.sort(descending=True, stable=True).indices
    return places[:, :count]


def _draw_scores(logits: torch.Tensor) -> torch.Tensor:
    """Evenly distributed scores: a hash of the bits of a token's first logit and of each expert's number."""
    number = torch.arange(logits.shape[1], device=logits.device)
    bits = (logits[:, :1].contiguous().view(torch.int32).long() & _WORD) * 0x9E3779B1 ^ number * 0x85EBCA6B
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = bits & _WORD
        bits = (bits ^ bits >> shift) * factor
    bits = bits & _WORD
    return ((bits ^ bits >> 16) >> 8).float() * 2.0**-24


_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": sigmoid,
    "uniform": _draw_scores,
}


def _mix_sparsely(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """SparseMixer-v2 (arXiv:2409.12136): a softmax over the experts near the best, once for each choice."""
    remaining, chosen, weights = logits, [], []
    for _ in range(routing.num_chosen):
        best, index = remaining.max(-1, keepdim=True)
        is_far = (best - logits) / logits.abs().clamp(min=best) > 2 * routing.jitter
        chosen.append(index)
        weights.append(remaining.masked_fill(is_far, float("-inf")).softmax(-1).gather(1, index))
        remaining = remaining.scatter(1, index, float("-inf"))
    return torch.cat(chosen, 1), torch.cat(weights, 1) * routing.scale
