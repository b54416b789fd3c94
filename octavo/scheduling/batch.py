"""The rows of a step, while it is put together and while it is under way."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.cache import UNLIMITED
from octavo.records import BlockUpdate, NewRow
from octavo.scheduling.request import Request
from octavo.scheduling.rows import Counts, Mask, Part, Rows, Slots


@dataclass(slots=True)
class Changes:
    """What the next step is to say besides its rows; see :class:`~octavo.records.Step`."""

    new_rows: list[NewRow] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    blocks_to_wipe: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Batch:
    """Who is in a step, in which row; steps that decode the same rows share one.

    Attributes:
        source, order: ``[R]``, the slots of the part that the batch was made of, and its rows in the batch's order.
        slots: ``[R]``.
        step_slots, num_new, samples: as the step says them.
        tenures: ``[R]`` who had the slots.
        requests, request_ids: the same in objects.
    """

    source: Slots
    order: NDArray[np.intp]
    slots: Slots
    step_slots: Counts
    num_new: Counts
    samples: Mask
    tenures: NDArray[np.int64]
    requests: list[Request]
    request_ids: list[str]

    @classmethod
    def of(cls, part: Part, rows: Rows) -> "Batch":
        """The batch of rows that were just advanced: those that decode first, the longest of them foremost.

        Attention begins with what takes longest. While the same rows decode, their order stays.
        """
        source = part.slots
        order = np.argsort(np.where(part.num_new > 1, UNLIMITED, -part.num_computed), kind="stable")
        part = part[order]
        slots = part.slots
        return cls(
            source=source,
            order=order,
            slots=slots,
            step_slots=slots.astype(np.int32),
            num_new=part.num_new,
            samples=part.samples,
            tenures=rows.tenures[slots],
            requests=rows.requests[slots].tolist(),
            request_ids=rows.request_ids[slots].tolist(),
        )
