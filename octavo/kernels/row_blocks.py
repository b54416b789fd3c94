"""Two-level reductions of rows: first within blocks of columns, then over the few block results.

The first level is a plain vectorised reduction, which processors do many times faster than an arg-reduction or a
running sum over the whole row. Every row is reduced by itself, so a result never depends on the other rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.kernels.dispatch import kernel

BLOCK_WIDTH = 256


@kernel
def argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row and the first place that has it; a NaN counts as the largest.

    Args:
        x: ``[N, V]``.

    Returns:
        ``[N]`` values, of the type of ``x`` or float32, and ``[N]`` int64 places.
    """
    best, block = reduce_blocks(x, torch.amax).max(-1)
    return best, block * BLOCK_WIDTH + gather_block(x, block, -torch.inf).argmax(-1)


def reduce_blocks(x: Tensor, reduction: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Reduce each block: ``[N, V]`` → ``[N, B]``; the last block holds what is left over."""
    whole = x.shape[1] - x.shape[1] % BLOCK_WIDTH
    parts = []
    if whole:
        parts.append(reduction(x[:, :whole].unflatten(1, (-1, BLOCK_WIDTH)), -1))
    if whole < x.shape[1]:
        parts.append(reduction(x[:, whole:].unsqueeze(1), -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def gather_block(x: Tensor, block: Tensor, filling: float) -> Tensor:
    """One block of each row: ``[N, V]`` and ``[N]`` → ``[N, BLOCK_WIDTH]``; a short block is filled up."""
    columns = block.unsqueeze(1) * BLOCK_WIDTH + torch.arange(BLOCK_WIDTH, device=x.device)
    if x.shape[1] % BLOCK_WIDTH == 0:
        return x.gather(1, columns)
    values = x.gather(1, columns.clamp(max=x.shape[1] - 1))
    return values.masked_fill_(columns >= x.shape[1], filling)
