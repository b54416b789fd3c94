"""The sum of what each token's experts computed; :class:`octavo.kernels.pair_sum.PairSum` has the terms."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_BLOCK = 1024


def sum_pairs(results: torch.Tensor, shares: torch.Tensor | None, num_chosen: int) -> torch.Tensor:
    """``[T·K, hidden]`` → ``[T, hidden]``; see :func:`octavo.kernels.pair_sum.sum_pairs`."""
    num_tokens, hidden = len(results) // num_chosen, results.shape[1]
    y = results.new_empty(num_tokens, hidden)
    if num_tokens:
        block = min(_BLOCK, triton.next_power_of_2(hidden))
        _sum_kernel[(num_tokens, triton.cdiv(hidden, block))](
            results,
            shares,
            y,
            hidden,
            NUM_CHOSEN=num_chosen,
            BLOCK=block,
            num_warps=4,
            **dependent_launch(results.device),
        )
    return y


@triton.jit
def _sum_kernel(
    results,
    shares,
    y,
    hidden,
    NUM_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program adds ``BLOCK`` columns of one token's pairs in order; grid (tokens, blocks of columns)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = add_up_pairs(results + token * NUM_CHOSEN * hidden + columns, shares, token, hidden, inside, NUM_CHOSEN)
    tl.store(y + token * hidden + columns, total, inside)


@triton.jit
def load_rows(spots, shares, tokens, hidden, mask, NUM_CHOSEN: tl.constexpr):
    """Rows as they are if ``NUM_CHOSEN`` is 0, else tokens' sums of pairs; see :func:`add_up_pairs`."""
    if NUM_CHOSEN == 0:
        rows = tl.load(spots, mask, other=0.0)
    else:
        rows = add_up_pairs(spots, shares, tokens, hidden, mask, NUM_CHOSEN)
    return rows


@triton.jit
def add_up_pairs(spots, shares, tokens, hidden, mask, NUM_CHOSEN: tl.constexpr):
    """The sums of tokens' pairs in float32 and in their order, in the type of the results.

    Args:
        spots: of results of the tokens' first pairs.
        shares: ``[T, NUM_CHOSEN]``, which results are multiplied by, or None.
        tokens: their numbers.
        hidden: from a pair to the next.
    """
    total = tl.zeros(spots.shape, tl.float32)
    for place in tl.static_range(NUM_CHOSEN):
        result = tl.load(spots + place * hidden, mask, other=0.0).to(tl.float32)
        if shares is None:
            total += result
        else:
            total += result * tl.load(shares + tokens * NUM_CHOSEN + place)
    return total.to(spots.dtype.element_ty)
