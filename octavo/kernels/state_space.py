"""Mamba-2's recurrent mixer (arXiv:2405.21060) over paged states: causal convolution, state-space scan, gated norm.

The state after the token at position q lies in block ``block_tables[slot, q // page_size]``, at place
``q % num_places`` of the block. A row reads the state after the token before its first, and starts from zeros at
position 0. It writes the states after its last ``num_places`` tokens, since drafts after the kept one are rejected
later, and after the last token of each page, where the prefix cache continues. All reads of a row come before its
writes, and no row reads what another row of the step writes.

Convolution and scan keep separate states of the same layout, each in the type of its tensor.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F

from octavo.kernels.attention import DeviceRows, StepShape
from octavo.kernels.dispatch import kernel

_MAX_SHORT = 4
"""Rows of up to this many tokens (or ``num_places``, if more) run together, one token of each at a time."""

_MAX_CHUNK = 128
"""Tokens of a longer row that run together as GEMMs."""


class _TokenStep(NamedTuple):
    """One token each of some short rows: which of the batch, their tokens, and which of these write their state."""

    members: torch.Tensor
    tokens: torch.Tensor
    writers: torch.Tensor


@dataclass
class StateInputs:
    """A step's inputs for recurrent layers, for one cache group of ``R`` requests and ``T`` tokens.

    Attributes:
        block_tables: ``[S, max_blocks]`` int32 on the device, by slot.
        slots: ``[R]`` integers on the device, each row's slot.
        page_size: tokens per block.
        num_places: states per block: 1 and the maximum number of drafts per row.
        rows: the rows' lengths.
        shape: the step's size, or bounds of it.
    """

    block_tables: torch.Tensor
    slots: torch.Tensor
    page_size: int
    num_places: int
    rows: DeviceRows
    shape: StepShape

    @cached_property
    def plan(self) -> "_StatePlan":
        """What the references share among layers; waits for the device."""
        return _StatePlan(self)


class _StatePlan:
    """Where real rows and tokens read and write states.

    Attributes:
        starts, query_lens: ``[R]`` int64, each row's first token and number of tokens.
        lengths, first_positions: number of tokens and first position of each row, on the host.
        row_of_token: ``[T]`` int64.
        is_fresh: ``[R]`` bool, whether the row starts from zeros.
        read_at: blocks and places, ``[R]`` int64 each, of initial states; arbitrary where fresh.
        write_at: blocks and places, ``[T]`` int64 each, of the state after each token.
        is_written: ``[T]`` bool, whether this state is kept.
        short_rows: ``[B]`` int64, rows of few tokens.
        short_steps: their tokens, one of each row at a time.
        long_rows: the other rows.
    """

    def __init__(self, inputs: StateInputs) -> None:
        device, tables = inputs.block_tables.device, inputs.block_tables
        num_rows = int(inputs.rows.counts[0])
        edges = inputs.rows.query_starts[: num_rows + 1].long()
        seq_lens = inputs.rows.seq_lens[:num_rows].long()
        slots = inputs.slots[:num_rows].long()
        self.starts, self.query_lens = edges[:-1], edges.diff()
        firsts = seq_lens - self.query_lens
        self.lengths, self.first_positions = self.query_lens.tolist(), firsts.tolist()
        num_tokens = sum(self.lengths)
        self.row_of_token = torch.repeat_interleave(self.query_lens, output_size=num_tokens)
        self.is_fresh = firsts == 0
        self.read_at = _locate(tables, slots, (firsts - 1).clamp(min=0), inputs)
        positions = torch.arange(num_tokens, device=device) + (firsts - self.starts)[self.row_of_token]
        self.write_at = _locate(tables, slots[self.row_of_token], positions, inputs)
        is_last = positions >= (seq_lens - inputs.num_places)[self.row_of_token]
        # A step that runs ahead may reach past the longest sequence; its results are never read.
        is_in_table = positions < tables.shape[1] * inputs.page_size
        self.is_written = (is_last | ((positions + 1) % inputs.page_size == 0)) & is_in_table
        most = max(_MAX_SHORT, inputs.num_places)
        is_short = self.query_lens <= most
        self.short_rows = is_short.nonzero()[:, 0]
        self.long_rows = (~is_short).nonzero()[:, 0].tolist()
        self.short_steps = []
        lengths, starts = self.query_lens[self.short_rows], self.starts[self.short_rows]
        for step in range(max((length for length in self.lengths if length <= most), default=0)):
            members = (lengths > step).nonzero()[:, 0]
            tokens = starts[members] + step
            self.short_steps.append(_TokenStep(members, tokens, self.is_written[tokens].nonzero()[:, 0]))

    def initial(self, state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Copies of the states that rows start from, in float32."""
        blocks, places = self.read_at
        initial = state[blocks[rows], places[rows]].float()
        return initial.index_fill_(0, self.is_fresh[rows].nonzero()[:, 0], 0)

    def write(self, state: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the states after some tokens."""
        blocks, places = self.write_at
        state[blocks[tokens], places[tokens]] = values.to(state.dtype)


def _locate(
    tables: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, inputs: StateInputs
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and places of the states after some positions."""
    index = (positions // inputs.page_size).clamp(max=tables.shape[1] - 1)
    return tables[slots, index].long(), positions % inputs.num_places


@kernel
def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, inputs: StateInputs
) -> torch.Tensor:
    """Depthwise causal convolution of each row's tokens, then SiLU; computed in float32.

    Args:
        x: ``[≥ T, C]``; rows past the step's tokens are padding.
        weight: ``[C, K]``, the last for the token itself.
        bias: ``[C]`` or None.
        state: ``[blocks, num_places, C, K − 1]``: the last K − 1 inputs, the latest last. Updated.

    Returns:
        ``[≥ T, C]`` of ``x``'s type; padding is finite.
    """
    plan, (_, width) = inputs.plan, weight.shape
    num_tokens, num_rows = len(plan.row_of_token), len(plan.starts)
    # Each row's inputs behind the K − 1 before them: token t of row r is at t + (r + 1)·(K − 1).
    extended = x.new_zeros(num_tokens + num_rows * (width - 1), x.shape[1], dtype=torch.float32)
    first = torch.arange(num_tokens, device=x.device) + plan.row_of_token * (width - 1)
    extended[first + width - 1] = x[:num_tokens].float()
    rows = torch.arange(num_rows, device=x.device)
    before = (plan.starts + rows * (width - 1))[:, None] + torch.arange(width - 1, device=x.device)
    extended[before] = plan.initial(state, rows).transpose(1, 2)
    sums = torch.zeros_like(extended) if bias is None else bias.float().expand(extended.shape).clone()
    sums = sums[: len(extended) - width + 1]
    for tap in range(width):
        sums.addcmul_(extended[tap : tap + len(sums)], weight[:, tap].float())
    written = plan.is_written.nonzero()[:, 0]
    kept = first[written, None] + torch.arange(1, width, device=x.device)
    plan.write(state, written, extended[kept].transpose(1, 2))
    output = torch.zeros_like(x, memory_format=torch.contiguous_format)
    output[:num_tokens] = F.silu(sums[first]).to(x.dtype)
    return output


@kernel
def state_space_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_limit: tuple[float, float],
    state: torch.Tensor,
    inputs: StateInputs,
) -> torch.Tensor:
    """Mamba-2's scan: ``h ← exp(Δ·A)·h + Δ·x Bᵀ``, ``y = h C + D·x`` with ``A = −exp(a_log)``; in float32.

    Args:
        x: ``[≥ T, H, P]``; rows past the step's tokens are padding.
        dt: ``[≥ T, H]``; the step size Δ is ``softplus(dt + dt_bias)`` within ``dt_limit``.
        a_log, d, dt_bias: ``[H]``.
        b, c: ``[≥ T, G, N]``; head h uses group ``h // (H / G)``.
        state: ``[blocks, num_places, H, P, N]``. Updated.

    Returns:
        ``[≥ T, H, P]`` of ``x``'s type; padding is finite.
    """
    plan, groups = inputs.plan, b.shape[1]
    steps = F.softplus(dt.float() + dt_bias.float()).clamp(*dt_limit)
    rates = -a_log.float().exp()
    output = torch.zeros_like(x, memory_format=torch.contiguous_format)
    if plan.short_steps:
        h = plan.initial(state, plan.short_rows)  # [B, H, P, N]
        for members, tokens, writers in plan.short_steps:
            part = h if len(members) == len(h) else h[members]
            inner = (x[tokens].float() * steps[tokens, :, None]).unflatten(1, (groups, -1))  # [B, G, H/G, P]
            part.mul_((steps[tokens] * rates).exp()[:, :, None, None])
            part.unflatten(1, (groups, -1)).addcmul_(inner[..., None], b[tokens].float()[:, :, None, None])
            y = part.unflatten(1, (groups, -1)).flatten(2, 3) @ c[tokens].float()[..., None]  # [B, G, H/G·P, 1]
            output[tokens] = torch.addcmul(y.view(x[tokens].shape), x[tokens].float(), d.float()[:, None]).to(x.dtype)
            plan.write(state, tokens[writers], part if len(writers) == len(part) else part[writers])
            if part is not h:
                h[members] = part
    for row in plan.long_rows:
        start, length = int(plan.starts[row]), plan.lengths[row]
        h = plan.initial(state, torch.tensor([row], device=x.device))[0]
        for first, stop in _chunks(plan.first_positions[row], length, inputs):
            own = slice(start + first, start + stop)
            wide = x[own].float()
            y, h = _scan_chunk(wide, steps[own], rates, b[own].float(), c[own].float(), h)
            output[own] = torch.addcmul(y, wide, d.float()[:, None]).to(x.dtype)
            last = torch.tensor([own.stop - 1], device=x.device)
            if plan.is_written[last]:
                plan.write(state, last, h[None])
    return output


def _chunks(first_position: int, length: int, inputs: StateInputs) -> list[tuple[int, int]]:
    """Cut a row so that each state that it writes is one after a chunk."""
    chunks, start = [], 0
    while start < length:
        page_end = inputs.page_size - (first_position + start) % inputs.page_size
        until_last = max(length - inputs.num_places + 1 - start, 1)
        stop = start + min(_MAX_CHUNK, page_end, until_last)
        chunks.append((start, stop))
        start = stop
    return chunks


def _scan_chunk(
    x: torch.Tensor, steps: torch.Tensor, rates: torch.Tensor, b: torch.Tensor, c: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk of L tokens of one row as GEMMs, without D.

    Args:
        x: ``[L, H, P]``.
        steps: ``[L, H]``, Δ.
        rates: ``[H]``, A.
        b, c: ``[L, G, N]``.
        h: ``[H, P, N]``, the state before.

    Returns:
        ``[L, H, P]`` and the state after.
    """
    length, num_heads, head_dim = x.shape
    groups = b.shape[1]
    b, c = b.transpose(0, 1), c.transpose(0, 1)  # [G, L, N]
    logs = (steps * rates).T.cumsum(1)  # [H, L]
    is_before = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    decay = (logs[:, :, None] - logs[:, None, :]).masked_fill_(~is_before, float("-inf")).exp_()
    decay.unflatten(0, (groups, -1)).mul_(torch.bmm(c, b.transpose(1, 2))[:, None])
    inner = (x * steps[:, :, None]).transpose(0, 1)  # [H, L, P]
    y = torch.bmm(decay, inner).transpose(0, 1)
    before = torch.bmm(c, h.view(groups, -1, h.shape[2]).transpose(1, 2))  # [G, L, H/G·P]
    before = before.transpose(0, 1).reshape(length, num_heads, head_dim)
    y = torch.addcmul(y, before, logs.T.exp()[:, :, None])
    inner = inner * (logs[:, -1:] - logs).exp()[:, :, None]
    added = inner.view(groups, -1, length, head_dim).transpose(2, 3).reshape(groups, -1, length) @ b
    return y, torch.addcmul(added.view(h.shape), h, logs[:, -1].exp()[:, None, None])


@kernel
def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, group_size: int
) -> torch.Tensor:
    """Root-mean-square norm of ``x · silu(gate)``, separately for each ``group_size`` values; computed in float32.

    Args:
        x, gate: ``[T, I]``.
        weight: ``[I]``.

    Returns:
        ``[T, I]`` of ``x``'s type.
    """
    wide = (x.float() * F.silu(gate.float())).unflatten(-1, (-1, group_size))
    wide = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).flatten(-2)
    if weight.dtype == x.dtype:
        return wide.to(x.dtype) * weight
    return (wide * weight).to(x.dtype)
