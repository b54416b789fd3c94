"""The state of a request inside the engine."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from octavo.cache import RequestCache
from octavo.records import EngineRequest
from octavo.scheduling.completion import Completion

Rank = tuple[int, int]
"""Priority (0 without the priority policy) and order of arrival; lower runs first."""


class Status(Enum):
    """Life cycle of a request; :class:`~octavo.scheduling.lifecycle.Lifecycle` changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """State of one sequence. While it runs, the values that change with every token are in :class:`Rows` instead.

    Attributes:
        completion: the answer so far.
        rank: its place among requests of its client.
        cache: its share of the cache.
        token_ids: ``[N]`` int32, prompt and generated tokens, as of the last time that it waited.
        expected_len: expected number of tokens at which it ends, estimated at its last admission.
        num_steps_in_flight: while it waits after a preemption, the number of steps in flight that include it.
    """

    completion: Completion
    rank: Rank
    cache: RequestCache
    token_ids: NDArray[np.int32]
    expected_len: int = 0
    status: Status = Status.WAITING
    num_steps_in_flight: int = 0

    @property
    def source(self) -> EngineRequest:
        """The request as received."""
        return self.completion.source

    @property
    def request_id(self) -> str:
        """The engine request's id."""
        return self.source.request_id

    @property
    def slot(self) -> int:
        """Slot in device state while running, else −1."""
        return self.cache.slot

    @property
    def num_prompt(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.source.prompt_token_ids)

    @property
    def max_len(self) -> int:
        """Number of tokens at which it ends at the latest."""
        return self.completion.max_len
