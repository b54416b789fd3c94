"""Mamba-2's recurrent mixer (arXiv:2405.21060) over paged states: causal convolution, state-space scan, gated norm.

The state after the token at position q lies in block ``block_tables[slot, q // page_size]``, at place
``q % num_places`` of the block. A row reads the state after the token before its first, and starts from zeros at
position 0. It writes the states after its last ``num_places`` tokens, since drafts after the kept one are rejected
later, and after the last token of each page, where the prefix cache continues. All reads of a row come before its
writes, and no row reads what another row of the step writes.

Convolution and scan keep separate states of the same layout, each in the type of its tensor.
"""

from collections.abc import Iterable
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
    """One token each of some short rows: which of them, and their tokens, on the device and on the host."""

    members: torch.Tensor
    tokens: torch.Tensor
    token_list: list[int]


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
    """Where real rows and tokens read and write states, on the host.

    States are large, so copying them one by one costs less than gathering them by index.

    Attributes:
        starts, lengths, first_positions: first token, number of tokens and first position of each row.
        read_at: block and place of each row's initial state; None where it is zero.
        write_at: token → block and place of the state after it, for states that are kept.
        row_of_token: ``[T]`` int64.
        short_rows, long_rows: rows of few tokens, and the others.
        short_steps: tokens of short rows, one of each row at a time.
    """

    def __init__(self, inputs: StateInputs) -> None:
        device, page_size = inputs.block_tables.device, inputs.page_size
        num_rows = int(inputs.rows.counts[0])
        edges = inputs.rows.query_starts[: num_rows + 1].long()
        seq_lens = inputs.rows.seq_lens[:num_rows].tolist()
        tables = inputs.block_tables[inputs.slots[:num_rows].long()].tolist()
        self.starts, self.lengths = edges[:-1].tolist(), edges.diff().tolist()
        self.first_positions = [seq_len - length for seq_len, length in zip(seq_lens, self.lengths, strict=True)]
        self.row_of_token = torch.repeat_interleave(edges.diff(), output_size=sum(self.lengths))
        # A step that runs ahead may reach past the longest sequence; its results are never read.
        end = inputs.block_tables.shape[1] * page_size

        def place(row: int, position: int) -> tuple[int, int]:
            return tables[row][min(position, end - 1) // page_size], position % inputs.num_places

        self.read_at = [place(row, first - 1) if first else None for row, first in enumerate(self.first_positions)]
        self.write_at: dict[int, tuple[int, int]] = {}
        for row, (start, first, seq_len) in enumerate(zip(self.starts, self.first_positions, seq_lens, strict=True)):
            page_ends = range(first - first % page_size + page_size - 1, seq_len, page_size)
            last = range(max(first, seq_len - inputs.num_places), seq_len)
            written = (position for position in {*page_ends, *last} if position < end)
            self.write_at |= {start + position - first: place(row, position) for position in written}
        most = max(_MAX_SHORT, inputs.num_places)
        self.short_rows = [row for row, length in enumerate(self.lengths) if length <= most]
        self.long_rows = [row for row, length in enumerate(self.lengths) if length > most]
        self.short_steps = []
        for step in range(max((self.lengths[row] for row in self.short_rows), default=0)):
            members = [member for member, row in enumerate(self.short_rows) if self.lengths[row] > step]
            tokens = [self.starts[self.short_rows[member]] + step for member in members]
            self.short_steps.append(
                _TokenStep(torch.tensor(members, device=device), torch.tensor(tokens, device=device), tokens)
            )

    def initial(self, state: torch.Tensor, rows: Iterable[int]) -> torch.Tensor:
        """Copies of the states that rows start from, in float32."""
        places = [self.read_at[row] for row in rows]
        return torch.stack([torch.zeros_like(state[0, 0]) if at is None else state[at] for at in places]).float()

    def write(self, state: torch.Tensor, tokens: Iterable[int], values: Iterable[torch.Tensor]) -> None:
        """Keep the states after those tokens whose states are kept."""
        for token, value in zip(tokens, values, strict=True):
            if token in self.write_at:
                state[self.write_at[token]].copy_(value)


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
    num_tokens, before = len(plan.row_of_token), plan.initial(state, range(len(plan.starts)))
    # Each row's inputs behind the K − 1 before them: the window of token t of row r starts at t + r·(K − 1).
    parts = []
    for row, (start, length) in enumerate(zip(plan.starts, plan.lengths, strict=True)):
        parts += [before[row].T, x[start : start + length].float()]
    extended = torch.cat(parts)
    sums = extended.new_zeros(len(extended) - width + 1, x.shape[1])
    if bias is not None:
        sums += bias
    for tap in range(width):
        sums.addcmul_(extended[tap : tap + len(sums)], weight[:, tap].float())
    windows = torch.arange(num_tokens, device=x.device) + plan.row_of_token * (width - 1)
    firsts = windows[list(plan.write_at)].tolist()
    plan.write(state, plan.write_at, [extended[first + 1 : first + width].T for first in firsts])
    output = torch.zeros_like(x, memory_format=torch.contiguous_format)
    output[:num_tokens] = F.silu(sums[windows]).to(x.dtype)
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
        for members, tokens, token_list in plan.short_steps:
            part = h if len(members) == len(h) else h[members]
            inner = (x[tokens].float() * steps[tokens, :, None]).unflatten(1, (groups, -1))  # [B, G, H/G, P]
            part.mul_((steps[tokens] * rates).exp()[:, :, None, None])
            part.unflatten(1, (groups, -1)).addcmul_(inner[..., None], b[tokens].float()[:, :, None, None])
            y = part.unflatten(1, (groups, -1)).flatten(2, 3) @ c[tokens].float()[..., None]  # [B, G, H/G·P, 1]
            output[tokens] = torch.addcmul(y.view(x[tokens].shape), x[tokens].float(), d.float()[:, None]).to(x.dtype)
            plan.write(state, token_list, part)
            if part is not h:
                h[members] = part
    for row in plan.long_rows:
        start, length = plan.starts[row], plan.lengths[row]
        h = plan.initial(state, [row])[0]
        for first, stop in _chunks(plan.first_positions[row], length, inputs):
            own = slice(start + first, start + stop)
            wide = x[own].float()
            y, h = _scan_chunk(wide, steps[own], rates, b[own].float(), c[own].float(), h)
            output[own] = torch.addcmul(y, wide, d.float()[:, None]).to(x.dtype)
            plan.write(state, [own.stop - 1], [h])
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
