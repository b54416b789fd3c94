"""Top-k, top-p and min-p: each finds the least weight that may be drawn, everything below is set to zero.

Weights are probabilities at the request's temperature; what filters leave is not normalised again, the draw does
without. Filters go by value, so tokens that tie with the last one kept are kept too, and a row's outcome depends
neither on a sort's order nor on the other rows.
"""

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.dispatch import kernel
from octavo.sampling import blocks

_FIRST_CUTS = (1e-3, 3e-5, 0.0)
"""Shares of the mass; the last leaves the provable cut alone."""


def to_weights(logits: Tensor, largest: Tensor, temperature: Tensor, out: Tensor) -> Tensor:
    """Probabilities at a temperature, NaN in rows whose largest logit is not finite.

    Args:
        logits: ``[N, V]`` float32; divided by the temperature in place, up to a constant.
        largest: ``[N]`` float32, the largest logit of each row.
        temperature: ``[N]`` float, above 0.
        out: ``[N, V]`` float32.

    Returns:
        ``out``.
    """
    return torch.softmax(scale(logits, largest, temperature), -1, out=out)


def scale(logits: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    """``(logit − largest) / temperature``, in place; arguments as of :func:`to_weights`."""
    # The difference is taken first, so that a small temperature cannot overflow.
    return logits.sub_(largest.unsqueeze(1)).div_(temperature.to(logits.dtype).unsqueeze(1))


def drop_below(weights: Tensor, least: Tensor, spare: Tensor) -> None:
    """Set weights under a row's least weight to zero, in place.

    Args:
        weights: ``[N, V]`` float32.
        least: ``[N]``.
        spare: ``[N, V]`` float32, overwritten: a mask of the weights' own type is much the fastest.
    """
    torch.ge(weights, least.to(weights.dtype).unsqueeze(1), out=spare)
    weights.mul_(spare)


def min_p_least(weights: Tensor, min_p: Tensor) -> Tensor:
    """A share ``min_p`` of the likeliest token's weight.

    Args:
        weights: ``[N, V]`` float32.
        min_p: ``[N]``, 0 to 1.

    Returns:
        ``[N]`` float32.
    """
    return weights.amax(-1) * min_p.to(weights.dtype)


def top_k_least(weights: Tensor, top_k: Tensor, largest_k: int) -> Tensor:
    """The k-th largest weight of each row.

    Args:
        weights: ``[N, V]`` float32.
        top_k: ``[N]`` int64, from 1.
        largest_k: the largest entry of ``top_k``, at most V.

    Returns:
        ``[N]`` float32.
    """
    largest = weights.topk(largest_k, dim=-1).values
    return largest.gather(1, top_k.unsqueeze(1) - 1).squeeze(1)


def top_p_least(weights: Tensor, top_p: Tensor) -> Tensor:
    """The least weight of the smallest set of likeliest tokens that holds a share ``top_p`` of the mass.

    Args:
        weights: ``[N, V]`` float32.
        top_p: ``[N]`` float64, above 0 and below 1.

    Returns:
        ``[N]`` float32; at least one token of each row reaches it.
    """
    return nucleus_least(weights, blocks.sums(weights).cumsum(-1)[:, -1], top_p)


@kernel
def nucleus_least(weights: Tensor, mass: Tensor, top_p: Tensor) -> Tensor:
    """The weight at which the sum of the larger weights reaches ``top_p · mass``; 0 if it never does.

    Args:
        weights: ``[N, V]`` float32, not negative.
        mass: ``[N]`` float64, the sum of each row.
        top_p: ``[N]`` float64.

    Returns:
        ``[N]`` float32.
    """
    descending = weights.sort(-1, descending=True).values
    running = descending.double().cumsum(-1)
    last = torch.searchsorted(running, (top_p * mass).unsqueeze(1))
    reached = last < weights.shape[1]
    least = descending.gather(1, last.clamp(max=weights.shape[1] - 1))
    return torch.where(reached, least, 0.0).squeeze(1)


@nucleus_least.register("cpu")
def _nucleus_least_cpu(weights: Tensor, mass: Tensor, top_p: Tensor) -> Tensor:
    """Sorts only weights that can matter.

    Weights below ``cut`` add up to at most half of ``(1 − top_p) · mass``, so the nucleus lies above it. Mostly it is
    far smaller, so higher cuts are tried first: if what lies above one reaches the target, the rest changes nothing.
    """
    rows = weights.numpy()
    least = np.zeros(len(rows), np.float32)
    cuts = (1.0 - top_p) * mass * (0.5 / weights.shape[1])
    for i, (cut, target, total) in enumerate(zip(cuts.tolist(), (top_p * mass).tolist(), mass.tolist(), strict=True)):
        for share in _FIRST_CUTS:
            descending = np.sort(rows[i][rows[i] >= max(cut, share * total)])[::-1]
            last = int(descending.cumsum(dtype=np.float64).searchsorted(target))
            if last < len(descending):
                least[i] = descending[last]
                break
    return torch.from_numpy(least)
