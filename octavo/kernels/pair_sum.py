"""The sum of what each token's experts computed, which may be left to the norm that reads it."""

import torch

from octavo.kernels.basic import rms_norm
from octavo.kernels.dispatch import kernel


class PairSum:
    """``Σ shares · results`` over the experts of each token, in float32 and in their order, then rounded.

    A *pair* is a token and one of its experts, numbered ``token · K + place``. The sum is computed once, alone or by a
    norm; then the pairs' results, which take ``K`` times its memory, are let go.

    Args:
        results: ``[T·K, hidden]``, by pairs' numbers; contiguous.
        shares: ``[T, K]`` float32.
        is_weighted: whether results are to be multiplied by the shares.
    """

    def __init__(self, results: torch.Tensor, shares: torch.Tensor, *, is_weighted: bool) -> None:
        self.num_rows, self.num_chosen = shares.shape
        self.dtype = results.dtype
        self._results: torch.Tensor | None = results
        self._shares = shares if is_weighted else None
        self._rows: torch.Tensor | None = None

    def rows(self) -> torch.Tensor:
        """``[T, hidden]``, by a launch of its own."""
        if self._rows is None:
            self._rows = sum_pairs(*self.take())
        return self._rows

    @property
    def is_open(self) -> bool:
        """Whether nothing has added up the pairs."""
        return self._results is not None

    def take(self) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """What :func:`sum_pairs` takes, for the kernel that adds up the pairs."""
        assert self._results is not None, "pairs are added up once"
        results, self._results = self._results, None
        return results, self._shares, self.num_chosen


def sum_of(y: torch.Tensor | PairSum) -> torch.Tensor:
    """A tensor as it is, or the sum."""
    return y.rows() if isinstance(y, PairSum) else y


@kernel
def sum_pairs(results: torch.Tensor, shares: torch.Tensor | None, num_chosen: int) -> torch.Tensor:
    """``[T·K, hidden]`` → ``[T, hidden]``; see :class:`PairSum`.

    Args:
        shares: ``[T, K]`` float32; None for one each.
    """
    by_token = results.unflatten(0, (-1, num_chosen)).float()
    total = by_token.new_zeros(len(by_token), results.shape[1])
    for place in range(num_chosen):
        total += by_token[:, place] if shares is None else by_token[:, place] * shares[:, place, None]
    return total.to(results.dtype)


@kernel
def add_rms_norm_of_pairs(
    results: torch.Tensor,
    shares: torch.Tensor | None,
    num_chosen: int,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a sum of pairs to the residual stream and norm the total; see :func:`octavo.kernels.basic.add_rms_norm`.

    Args:
        results, shares, num_chosen: of :func:`sum_pairs`.
        residual: ``[T, hidden]``.
    """
    total = residual + sum_pairs(results, shares, num_chosen)
    return rms_norm(total, weight, eps), total
