"""Two-level reductions over the vocabulary: first within blocks, then over the few block results.

The first level is a plain vectorised reduction, which processors do many times faster than an arg-reduction or a
running sum over the whole row. Every row is reduced by itself, so a result never depends on the other rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_WIDTH = 256


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and the lowest token id that has it; a NaN counts as the largest.

    Args:
        logits: ``[N, V]``.

    Returns:
        ``[N]`` values of the logits' type and ``[N]`` int64 token ids.
    """
    best, block = _reduce(logits, torch.amax).max(-1)
    return best, block * BLOCK_WIDTH + _values(logits, block, -torch.inf).argmax(-1)


def sums(weights: Tensor) -> Tensor:
    """Sums of the blocks of each row: ``[N, V]`` float32 → ``[N, B]`` float64."""
    return _reduce(weights, torch.sum).double()


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which a row's running sum first exceeds its share ``uniforms`` of the whole (inverse CDF).

    A token of weight zero is never picked, unless the whole row is zero or NaN; then the result is some valid id.

    Args:
        weights: ``[N, V]`` float32, not negative.
        uniforms: ``[N]`` float64, at least 0 and at most 1 − 2⁻⁵².

    Returns:
        ``[N]`` int64 token ids.
    """
    ends = sums(weights).cumsum(-1)  # [N, B]
    target = uniforms.unsqueeze(1) * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)  # [N, 1]
    start = ends.gather(1, (block - 1).clamp_(min=0)) * (block > 0)
    inside = _values(weights, block.squeeze(1), 0.0).double().cumsum(-1)  # [N, BLOCK_WIDTH]
    # The block's sum was rounded differently from this running sum: stay strictly below its end.
    rest = torch.minimum(target - start, inside[:, -1:] * (1 - 2**-52))
    offset = torch.searchsorted(inside, rest, right=True)
    return (block * BLOCK_WIDTH + offset).clamp_(max=weights.shape[1] - 1).squeeze(1)


def _reduce(x: Tensor, reduction: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Reduce each block: ``[N, V]`` → ``[N, B]``; the last block holds what is left over."""
    whole = x.shape[1] - x.shape[1] % BLOCK_WIDTH
    parts = []
    if whole:
        parts.append(reduction(x[:, :whole].unflatten(1, (-1, BLOCK_WIDTH)), -1))
    if whole < x.shape[1]:
        parts.append(reduction(x[:, whole:].unsqueeze(1), -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _values(x: Tensor, block: Tensor, filling: float) -> Tensor:
    """One block of each row: ``[N, V]`` and ``[N]`` → ``[N, BLOCK_WIDTH]``; a short block is filled up."""
    columns = block.unsqueeze(1) * BLOCK_WIDTH + torch.arange(BLOCK_WIDTH, device=x.device)
    if x.shape[1] % BLOCK_WIDTH == 0:
        return x.gather(1, columns)
    values = x.gather(1, columns.clamp(max=x.shape[1] - 1))
    return values.masked_fill_(columns >= x.shape[1], filling)
