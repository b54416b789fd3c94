"""Samples one token per row from logits over the vocabulary; the sampling parameters are on the device.

The first launch (survey) reads the logits once and stores, for each group of 256 tokens, the largest logit and the sum
of weights ("mass"). The last program of a row to finish then draws its token: greedy rows take the first largest
logit, others invert the CDF over the masses. Rows with top-k, top-p or min-p are left to the second launch
(:mod:`sampling_filters`).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors
from octavo.kernels.triton.sampling_draw import GROUP, draw, log2_scale, uniform
from octavo.kernels.triton.sampling_filters import MAX_CANDIDATES, filter_kernel
from octavo.kernels.triton.sampling_search import key_shift
from octavo.records import NAN_TOKEN
from octavo.records.sampling_params import GREEDY_TEMPERATURE

_NAN_TOKEN = tl.constexpr(NAN_TOKEN)
_GREEDY_TEMPERATURE = tl.constexpr(GREEDY_TEMPERATURE)


class SamplingLayout(NamedTuple):
    """Launch configuration.

    Attributes:
        tile_groups: groups of tokens that a survey program reads at once.
        survey_warps: warps per survey program.
        programs_per_multiprocessor: target number of survey programs per multiprocessor.
        filter_warps: warps per filter program.
        filter_registers: maximum registers per thread of a filter program; fewer let more share a multiprocessor.
    """

    tile_groups: int = 32
    survey_warps: int = 8
    programs_per_multiprocessor: int = 16
    filter_warps: int = 8
    filter_registers: int = 80


_LAYOUT = SamplingLayout()


class SamplingWorkspace:
    """Scratch memory for :func:`sample`, which leaves it ready for the next call.

    Attributes:
        maxima, masses: ``[R, G]`` float32, largest logit and sum of weights of each group of tokens.
        arrivals: ``[R]`` int32, zero between calls.
        is_open: ``[R]`` int32, rows that the first launch leaves to the second.
        listed: ``[R, G]`` int32, groups that contain candidates.
        candidates, candidate_ids: ``[R, MAX_CANDIDATES]`` float32 logits and int32 token ids.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        num_groups = triton.cdiv(vocab_size, GROUP)
        self.maxima = torch.empty(max_rows, num_groups, dtype=torch.float32, device=device)
        self.masses = torch.empty_like(self.maxima)
        self.arrivals = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.is_open = torch.zeros_like(self.arrivals)
        self.listed = torch.empty_like(self.maxima, dtype=torch.int32)
        self.candidates = torch.empty(max_rows, MAX_CANDIDATES, dtype=torch.float32, device=device)
        self.candidate_ids = torch.empty(max_rows, MAX_CANDIDATES, dtype=torch.int32, device=device)


def sample(
    logits: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    lengths: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    stream_key: torch.Tensor,
    prompt_len: torch.Tensor,
    tokens: torch.Tensor,
    workspace: SamplingWorkspace,
    *,
    num_rows: int,
    layout: SamplingLayout = _LAYOUT,
) -> None:
    """Draw one token per row, as :class:`octavo.sampling.sampler.Sampler` does for these parameters.

    The host plans and reads nothing. A row's token does not depend on the other rows or their number. Sums are
    rounded differently from the Sampler's, so one draw in many thousands gives a neighbouring token.

    Args:
        logits: ``[≥R, V]`` of any float type; not changed.
        slots: ``[≥R]`` integers.
        counts: int32; rows from ``counts[0]`` on are skipped and their tokens not written.
        lengths: ``[≥R]`` integers, number of the request's tokens before this one.
        temperature, top_p, min_p: ``[S]`` float64, by slot, of equal stride; a temperature of 0 is greedy.
        top_k, stream_key, prompt_len: ``[S]`` int64, by slot, of equal stride.
        tokens: out, ``[≥R]`` int64; −1 if the largest logit of a row is not finite.
        num_rows: upper bound R of the rows.
        layout: a row's token depends on it by rounding only, and not on the number of programs.
    """
    vocab_size = logits.shape[1]
    num_groups = triton.cdiv(vocab_size, GROUP)
    assert logits.stride(1) == 1 and workspace.maxima.shape[1] == num_groups
    assert temperature.stride() == top_p.stride() == min_p.stride()
    assert top_k.stride() == stream_key.stride() == prompt_len.stride()
    num_tiles = triton.cdiv(num_groups, layout.tile_groups)
    programs_wanted = num_multiprocessors(logits.device) * layout.programs_per_multiprocessor
    tiles_per_program = max(1, num_rows * num_tiles // programs_wanted)
    parameters = (temperature, top_p, min_p, top_k, stream_key, prompt_len)
    sizes = (vocab_size, num_groups, logits.stride(0), temperature.stride(0), top_k.stride(0))
    padded_groups = triton.next_power_of_2(num_groups)
    _survey_kernel[(triton.cdiv(num_tiles, tiles_per_program), num_rows)](
        logits,
        slots,
        counts,
        lengths,
        *parameters,
        tokens,
        workspace.maxima,
        workspace.masses,
        workspace.arrivals,
        workspace.is_open,
        *sizes,
        tiles_per_program,
        TILE_GROUPS=layout.tile_groups,
        GROUPS=padded_groups,
        GROUP=GROUP,
        num_warps=layout.survey_warps,
        **dependent_launch(logits.device),
    )
    filter_kernel[(num_rows,)](
        logits,
        slots,
        counts,
        lengths,
        *parameters,
        tokens,
        workspace.maxima,
        workspace.masses,
        workspace.is_open,
        workspace.listed,
        workspace.candidates,
        workspace.candidate_ids,
        *sizes,
        GROUPS=padded_groups,
        GROUP=GROUP,
        SHIFT=key_shift(logits.dtype),
        num_warps=layout.filter_warps,
        maxnreg=layout.filter_registers,
        **dependent_launch(logits.device),
    )


@triton.jit(do_not_specialize=["tiles_per_program"])
def _survey_kernel(
    logits,
    slots,
    counts,
    lengths,
    temperature,
    top_p,
    min_p,
    top_k,
    stream_key,
    prompt_len,
    tokens,
    maxima,
    masses,
    arrivals,
    is_open,
    vocab_size,
    num_groups,
    logits_stride,
    float_stride,
    int_stride,
    tiles_per_program,
    TILE_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program surveys a run of groups of one row; the last one of a row draws its token; grid (runs, rows)."""
    row = tl.program_id(1)
    first = tl.program_id(0) * tiles_per_program * TILE_GROUPS
    last = tl.minimum(first + tiles_per_program * TILE_GROUPS, num_groups)
    logits += row.to(tl.int64) * logits_stride
    maxima += row.to(tl.int64) * num_groups
    masses += row.to(tl.int64) * num_groups
    offsets = tl.arange(0, TILE_GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Request the first logits before the parameters are known; loads that are not volatile would move past the branch.
    columns = first * GROUP + offsets
    coming = tl.load(logits + columns, columns < vocab_size, other=-float("inf"), volatile=True)
    slot = tl.load(slots + row, volatile=True).to(tl.int64)
    num_real = tl.load(counts)
    if row >= num_real:
        return
    t = tl.load(temperature + slot * float_stride)
    p = tl.load(top_p + slot * float_stride)
    share_of_best = tl.load(min_p + slot * float_stride)
    k = tl.load(top_k + slot * int_stride)
    is_random = (t >= _GREEDY_TEMPERATURE) & (k != 1)
    scale = log2_scale(tl.maximum(t, _GREEDY_TEMPERATURE))

    for start in range(first, last, TILE_GROUPS):
        x = coming.to(tl.float32)
        columns = (start + TILE_GROUPS) * GROUP + offsets
        is_ahead = (columns < vocab_size) & (columns < last * GROUP)
        coming = tl.load(logits + columns, is_ahead, other=-float("inf"))
        # tl.max ignores NaN, so replace it by an infinity, which marks the row as failed, too.
        x = tl.where(x == x, x, float("inf"))  # noqa: PLR0124
        peaks = tl.max(x, axis=1)
        groups = start + tl.arange(0, TILE_GROUPS)
        tl.store(maxima + groups, peaks, groups < num_groups)
        if is_random:
            origin = tl.where(peaks > -float("inf"), peaks, 0.0)
            sums = tl.sum(tl.exp2((x - origin[:, None]) * scale), axis=1)
            tl.store(masses + groups, sums, groups < num_groups)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + row, 1, sem="acq_rel") < tl.num_programs(0) - 1:
        return
    tl.store(arrivals + row, 0)
    groups = tl.arange(0, GROUPS)
    is_group = groups < num_groups
    peaks = tl.load(maxima + groups, is_group, other=-float("inf"), cache_modifier=".cg")
    sums = tl.load(masses + groups, is_group, other=0.0, cache_modifier=".cg")
    counter = tl.load(lengths + row).to(tl.int64) - tl.load(prompt_len + slot * int_stride)
    share = uniform(tl.load(stream_key + slot * int_stride), counter)
    best = tl.max(peaks, 0)
    is_sound = tl.abs(best) < float("inf")
    is_filtered = ((k > 0) & (k < vocab_size)) | (p < 1) | (share_of_best > 0)
    is_left_open = is_sound & is_random & is_filtered
    tl.store(is_open + row, is_left_open.to(tl.int32))
    if is_left_open:
        return
    token = tl.full([], _NAN_TOKEN, tl.int32)
    if is_sound:
        if is_random:
            token = draw(logits, peaks, sums, vocab_size, best, scale, share, -float("inf"), GROUPS, GROUP)
        else:
            group = tl.min(tl.where(peaks == best, groups, GROUPS - 1), 0)
            ids = group * GROUP + tl.arange(0, GROUP)
            last_read = tl.load(logits + ids, ids < vocab_size, other=-float("inf")).to(tl.float32)
            token = tl.min(tl.where(last_read == best, ids, vocab_size - 1), 0)
    tl.store(tokens + row, token.to(tl.int64))
