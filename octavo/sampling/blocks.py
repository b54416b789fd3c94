"""Sums over the vocabulary and draws from it, in blocks; see :mod:`octavo.kernels.row_blocks`."""

import torch
from torch import Tensor

from octavo.kernels.row_blocks import BLOCK_WIDTH, gather_block, reduce_blocks


def sums(weights: Tensor) -> Tensor:
    """Sums of the blocks of each row: ``[N, V]`` float32 → ``[N, B]`` float64."""
    return reduce_blocks(weights, torch.sum).double()


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
    inside = gather_block(weights, block.squeeze(1), 0.0).double().cumsum(-1)  # [N, BLOCK_WIDTH]
    # The block's sum was rounded differently from this running sum: stay strictly below its end.
    rest = torch.minimum(target - start, inside[:, -1:] * (1 - 2**-52))
    offset = torch.searchsorted(inside, rest, right=True)
    return (block * BLOCK_WIDTH + offset).clamp_(max=weights.shape[1] - 1).squeeze(1)
