"""Log-probabilities and ranks of drawn tokens, and the most likely tokens; inputs and outputs stay on the device."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors
from octavo.kernels.triton.sampling_draw import GROUP

_TILE_GROUPS = 8
_PROGRAMS_PER_MULTIPROCESSOR = 32
_NOTHING = tl.constexpr(-(1 << 31))
_EVERYTHING = tl.constexpr((1 << 31) - 1)


class LogprobsWorkspace:
    """Scratch memory for :func:`logprobs`.

    Attributes (``[R, G]``, per group of tokens):
        maxima, masses: float32, largest logit and sum of weights.
        num_above: int32, number of logits above the chosen token's.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        num_groups = triton.cdiv(vocab_size, GROUP)
        self.maxima = torch.empty(max_rows, num_groups, dtype=torch.float32, device=device)
        self.masses = torch.empty_like(self.maxima)
        self.num_above = torch.empty_like(self.maxima, dtype=torch.int32)


def logprobs(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    listed_ids: torch.Tensor,
    listed_logprobs: torch.Tensor,
    ranks: torch.Tensor,
    workspace: LogprobsWorkspace,
) -> None:
    """Log-softmax of the logits at one token per row and at the most likely ones, as listed by
    :func:`octavo.sampling.logprobs.token_logprobs`; among equal logits the lowest id comes first.

    Args:
        logits: ``[R, V]`` of any float type, the model's own.
        tokens: ``[R]`` int64, the chosen tokens.
        listed_ids, listed_logprobs: out, ``[R, 1 + n]`` int64 and float32, contiguous: the chosen token, then the
            ``n`` ≤ V most likely ones in descending order.
        ranks: out, ``[R]`` int64, 1 + the number of tokens strictly more likely than the chosen one.
        workspace: for at least R rows.
    """
    num_rows, vocab_size = logits.shape
    num_groups = triton.cdiv(vocab_size, GROUP)
    assert logits.stride(1) == 1 and workspace.maxima.shape[1] == num_groups and num_rows <= len(workspace.maxima)
    assert listed_ids.is_contiguous() and listed_logprobs.is_contiguous()
    num_tiles = triton.cdiv(num_groups, _TILE_GROUPS)
    programs_wanted = num_multiprocessors(logits.device) * _PROGRAMS_PER_MULTIPROCESSOR
    tiles_per_program = max(1, num_rows * num_tiles // programs_wanted)
    scratch = (workspace.maxima, workspace.masses, workspace.num_above)
    sizes = (vocab_size, num_groups, logits.stride(0))
    _survey_kernel[(triton.cdiv(num_tiles, tiles_per_program), num_rows)](
        logits,
        tokens,
        *scratch,
        *sizes,
        tiles_per_program,
        TILE_GROUPS=_TILE_GROUPS,
        GROUP=GROUP,
        num_warps=4,
        **dependent_launch(logits.device),
    )
    _finish_kernel[(num_rows,)](
        logits,
        tokens,
        *scratch,
        listed_ids,
        listed_logprobs,
        ranks,
        *sizes,
        listed_ids.shape[1],
        GROUPS=triton.next_power_of_2(num_groups),
        GROUP=GROUP,
        num_warps=4,
        **dependent_launch(logits.device),
    )


@triton.jit
def _order(x):
    """Map float32 to an int32 of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["tiles_per_program"])
def _survey_kernel(
    logits,
    tokens,
    maxima,
    masses,
    num_above,
    vocab_size,
    num_groups,
    logits_stride,
    tiles_per_program,
    TILE_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program surveys a run of groups of one row; grid (runs, rows)."""
    row = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    logits += row.to(tl.int64) * logits_stride
    chosen = tl.load(logits + tl.load(tokens + row)).to(tl.float32)
    first = tl.program_id(0) * tiles_per_program * TILE_GROUPS
    last = tl.minimum(first + tiles_per_program * TILE_GROUPS, num_groups)
    for start in range(first, last, TILE_GROUPS):
        groups = start + tl.arange(0, TILE_GROUPS)
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + columns, columns < vocab_size, other=-float("inf")).to(tl.float32)
        peaks = tl.max(x, axis=1)
        origin = tl.where(peaks > -float("inf"), peaks, 0.0)
        sums = tl.sum(tl.exp(x - origin[:, None]), axis=1)
        places = row.to(tl.int64) * num_groups + groups
        tl.store(maxima + places, peaks, groups < num_groups)
        tl.store(masses + places, sums, groups < num_groups)
        tl.store(num_above + places, tl.sum((x > chosen).to(tl.int32), axis=1), groups < num_groups)


@triton.jit(do_not_specialize=["width"])
def _finish_kernel(
    logits,
    tokens,
    maxima,
    masses,
    num_above,
    listed_ids,
    listed_logprobs,
    ranks,
    vocab_size,
    num_groups,
    logits_stride,
    width,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program lists one row's tokens and log-probabilities; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    groups = tl.arange(0, GROUPS)
    places = row * num_groups + groups
    peaks = tl.load(maxima + places, groups < num_groups, other=-float("inf"))
    sums = tl.load(masses + places, groups < num_groups, other=0.0).to(tl.float64)
    above = tl.load(num_above + places, groups < num_groups, other=0)
    best = tl.max(peaks, 0)
    log_mass = tl.log(tl.sum(sums * tl.exp(peaks - best).to(tl.float64), 0).to(tl.float32))
    logits += row * logits_stride
    listed_ids += row * width
    listed_logprobs += row * width
    token = tl.load(tokens + row)
    tl.store(listed_ids, token)
    tl.store(listed_logprobs, tl.load(logits + token).to(tl.float32) - best - log_mass)
    tl.store(ranks + row, 1 + tl.sum(above, 0).to(tl.int64))

    # Each group's largest logit that is not listed yet, as an ordered integer.
    left = tl.where(groups < num_groups, _order(peaks), _NOTHING)
    last, last_id = tl.full([], _EVERYTHING, tl.int32), tl.full([], -1, tl.int32)
    for place in range(1, width):
        largest = tl.max(left, 0)
        group = tl.min(tl.where(left == largest, groups, GROUPS - 1), 0)
        ids = group * GROUP + tl.arange(0, GROUP)
        x = tl.load(logits + ids, ids < vocab_size, other=0.0).to(tl.float32)
        orders = tl.where(ids < vocab_size, _order(x), _NOTHING)
        is_left = (orders < last) | ((orders == last) & (ids > last_id))
        last_id = tl.min(tl.where(is_left & (orders == largest), ids, vocab_size - 1), 0)
        last = largest
        tl.store(listed_ids + place, last_id.to(tl.int64))
        value = tl.max(tl.where(ids == last_id, x, -float("inf")), 0)
        tl.store(listed_logprobs + place, value - best - log_mass)
        is_left = (orders < last) | ((orders == last) & (ids > last_id))
        left = tl.where(groups == group, tl.max(tl.where(is_left, orders, _NOTHING), 0), left)
