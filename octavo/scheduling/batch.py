"""The rows of a step, while it is being built and while it is in flight."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.cache import UNLIMITED
from octavo.records import BlockUpdate, NewRow
from octavo.scheduling.request import Request
from octavo.scheduling.rows import Counts, Mask, Rows, Slots, StepPart


@dataclass(slots=True)
class Changes:
    """Changes that the next step carries besides its rows; see :class:`~octavo.records.Step`."""

    new_rows: list[NewRow] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    blocks_to_wipe: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class StepBatch:
    """The requests of a step by row; steps that decode the same rows share one batch.

    Attributes:
        source, order: ``[R]``, slots of the part that the batch was made of, and its rows in the batch's order.
        slots: ``[R]``.
        step_slots, num_scheduled_tokens, num_drawn: as in the step.
        draws: ``[R]``, whether a token is drawn at all.
        is_row: ``[R]``, true.
        slot_generations: ``[R]``, generation of each slot when the step was made; see :class:`Rows`.
        requests, request_ids: the requests of the rows.
    """

    source: Slots
    order: NDArray[np.intp]
    slots: Slots
    step_slots: Counts
    num_scheduled_tokens: Counts
    num_drawn: Counts
    draws: Mask
    is_row: Mask
    slot_generations: NDArray[np.int64]
    requests: list[Request]
    request_ids: list[str]

    @classmethod
    def of(cls, part: StepPart, rows: Rows, decode_len: int) -> "StepBatch":
        """The batch of rows that were just advanced: decoding rows first, longest first among them.

        Attention thus starts with the longest work. The order stays as long as the same rows decode.
        """
        source = part.slots
        order = np.argsort(
            np.where(part.num_scheduled_tokens > decode_len, UNLIMITED, -part.num_computed), kind="stable"
        )
        part = part[order]
        slots = part.slots
        return cls(
            source=source,
            order=order,
            slots=slots,
            step_slots=slots.astype(np.int32),
            num_scheduled_tokens=part.num_scheduled_tokens,
            num_drawn=part.num_drawn,
            draws=part.num_drawn > 0,
            is_row=np.ones(len(slots), np.bool_),
            slot_generations=rows.slot_generations[slots],
            requests=rows.requests[slots].tolist(),
            request_ids=rows.request_ids[slots].tolist(),
        )
