"""Where a step draws tokens, and how they are appended: one per row, or up to ``K + 1`` behind and between drafts."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.execution.inputs import StepInputs
from octavo.execution.state import BatchState
from octavo.kernels import DraftTensors, DrawTensors, StepKernels, StepShape
from octavo.platforms.transfer import StepBuffer
from octavo.records import Plan, Step
from octavo.speculation.drafter import Drafter

T = TypeVar("T", torch.Tensor, NDArray[np.int32])


@dataclass(slots=True)
class NewTokens:
    """A step's new tokens, which may be read once their copies have arrived.

    Attributes:
        token_ids: ``[R, W]`` int32, or ``[R]`` without ``num_tokens``.
        num_tokens: ``[R]`` int32, how many of a row's tokens count; None for one in each row that draws.
        drafts, num_drafts: ``[R, K]`` and ``[R]`` int32, the drafts that wait now; None without a drafter.
    """

    token_ids: NDArray[np.int32]
    num_tokens: NDArray[np.int32] | None = None
    drafts: NDArray[np.int32] | None = None
    num_drafts: NDArray[np.int32] | None = None


class Draws(Protocol):
    """The places of a step at which tokens are drawn, ``width`` per row.

    Attributes:
        width: ``W``, the largest number of draws per row.
        drawn: ``[max rows · W]`` int64, the drawn tokens.
    """

    width: int
    drawn: torch.Tensor

    def places(self, shape: StepShape) -> torch.Tensor | None:
        """Index among the step's tokens of each place's token, ``[R · W]``; None if place ``i`` has token ``i``."""

    @property
    def slots(self) -> torch.Tensor:
        """``[≥ R · W]`` int32, each place's slot."""

    @property
    def lengths(self) -> torch.Tensor:
        """``[≥ R · W]`` int32, tokens before the drawn one."""

    @property
    def counts(self) -> torch.Tensor:
        """The number of places of real rows first, int32."""

    def drafts_before(self, num_rows: int) -> torch.Tensor | None:
        """The drafts before each place, ``[num_rows · W, K]``, −1 for none; None without a drafter."""

    def append(self, num_rows: int) -> None:
        """Append the drawn tokens to device state, and draft."""

    def kept(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What :meth:`append` has added: slots ``[R]``, tokens ``[R, W]``, and how many of them per row, ``[R]``."""

    def to_host(self, num_rows: int) -> NewTokens:
        """Queue copies of the new tokens."""


class SingleDraws:
    """One draw per row, after its last token."""

    width = 1

    def __init__(self, state: BatchState, inputs: StepInputs, kernels: StepKernels) -> None:
        self._state, self._inputs, self._kernels = state, inputs, kernels
        self.drawn = torch.zeros_like(inputs.last_tokens)
        self._new_tokens = torch.zeros_like(inputs.seq_lens)
        self._for_host = StepBuffer(self._new_tokens)

    def places(self, shape: StepShape) -> torch.Tensor | None:
        """See :meth:`Draws.places`."""
        return self._inputs.last_tokens[: shape.num_rows] if shape.has_chunks else None

    @property
    def slots(self) -> torch.Tensor:
        """See :attr:`Draws.slots`."""
        return self._state.row_slots

    @property
    def lengths(self) -> torch.Tensor:
        """See :attr:`Draws.lengths`."""
        return self._inputs.seq_lens

    @property
    def counts(self) -> torch.Tensor:
        """See :attr:`Draws.counts`."""
        return self._state.header

    def append(self, num_rows: int) -> None:
        """See :meth:`Draws.append`."""
        self._kernels.append_tokens(self._state, self.drawn, self._new_tokens, num_rows=num_rows)

    def drafts_before(self, num_rows: int) -> torch.Tensor | None:
        """See :meth:`Draws.drafts_before`."""
        return None

    def kept(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :meth:`Draws.kept`."""
        state = self._state
        return state.row_slots[:num_rows], self._new_tokens[:num_rows, None], state.row_num_drawn[:num_rows]

    def to_host(self, num_rows: int) -> NewTokens:
        """See :meth:`Draws.to_host`."""
        return NewTokens(self._for_host.to_host(num_rows))


class DraftedDraws:
    """Up to ``K + 1`` draws per row: behind its last token and each draft. Verifies the drafts, and drafts anew."""

    def __init__(
        self, state: BatchState, inputs: StepInputs, plan: Plan, kernels: StepKernels, drafter: Drafter
    ) -> None:
        self._state, self._inputs, self._kernels, self._drafter = state, inputs, kernels, drafter
        max_rows, device = plan.max_num_seqs, state.header.device
        self.width = 1 + plan.num_drafts
        num_places = max_rows * self.width

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.drawn = zeros(num_places, dtype=torch.int64)
        place = torch.arange(self.width, device=device)
        self._is_before = place[:-1] < place[:, None]
        self._draws = DrawTensors(zeros(num_places, dtype=torch.int64), zeros(num_places), zeros(num_places), zeros(1))
        # One tensor, so that one copy takes all to the host.
        packed = zeros(max_rows, 2 * self.width + 1)
        self._for_host = StepBuffer(packed)
        self._drafts = DraftTensors(*self._parts(packed))

    def places(self, shape: StepShape) -> torch.Tensor | None:
        """See :meth:`Draws.places`."""
        self._kernels.prepare_draws(self._state, self._inputs, self._draws, num_rows=shape.num_rows)
        return self._draws.tokens[: shape.num_rows * self.width]

    @property
    def slots(self) -> torch.Tensor:
        """See :attr:`Draws.slots`."""
        return self._draws.slots

    @property
    def lengths(self) -> torch.Tensor:
        """See :attr:`Draws.lengths`."""
        return self._draws.lengths

    @property
    def counts(self) -> torch.Tensor:
        """See :attr:`Draws.counts`."""
        return self._draws.counts

    def append(self, num_rows: int) -> None:
        """See :meth:`Draws.append`."""
        self._kernels.append_accepted(self._state, self.drawn, self._drafts, num_rows=num_rows)
        self._drafter.propose(self._state, self._drafts, num_rows)

    def drafts_before(self, num_rows: int) -> torch.Tensor | None:
        """See :meth:`Draws.drafts_before`."""
        # A draft is the token of the place behind it.
        tokens = self._inputs.token_ids[self._draws.tokens[: num_rows * self.width]].view(num_rows, 1, self.width)
        return torch.where(self._is_before, tokens[:, :, 1:], -1).view(num_rows * self.width, -1)

    def kept(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :meth:`Draws.kept`."""
        return self._state.row_slots[:num_rows], self._drafts.new_tokens[:num_rows], self._drafts.num_tokens[:num_rows]

    def to_host(self, num_rows: int) -> NewTokens:
        """See :meth:`Draws.to_host`."""
        return NewTokens(*self._parts(self._for_host.to_host(num_rows)))

    def _parts(self, packed: T) -> tuple[T, T, T, T]:
        """Each row's new tokens, their number, its drafts, their number."""
        return packed[:, : self.width], packed[:, self.width], packed[:, self.width + 1 : -1], packed[:, -1]


def drawn_places(step: Step, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The places at which some rows draw, row after row: ``[N]`` indices into ``[R · width]``."""
    if width == 1:
        return rows
    num_drawn = step.num_drawn[rows]
    within = np.arange(num_drawn.sum()) - np.repeat(np.cumsum(num_drawn) - num_drawn, num_drawn)
    return np.repeat(rows * width, num_drawn) + within
