"""The state of a request inside the engine."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from octavo.cache import RequestCache
from octavo.records import EngineRequest, RequestTimes, TokenLogprobs
from octavo.sampling.grammar.constraint import Constraint
from octavo.scheduling.repetition import RepetitionDetector


class Status(Enum):
    """Life cycle of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """State of one sequence. While it runs, the values that change with every token are in :class:`Rows` instead.

    Attributes:
        source: the request as received.
        order: sequence number of its arrival.
        cache: its share of the cache.
        token_ids: ``[N]`` int32, prompt and generated tokens, as of the last time that it waited.
        stop_token_ids, eos_token_ids: tokens that end the answer.
        max_len: number of tokens at which it ends at the latest.
        expected_len: expected number of tokens at which it ends, estimated at its last admission.
        status: waiting, running or finished.
        num_steps_under_way: while it waits after a preemption, the number of steps in flight that include it.
        num_cached: prompt tokens served from the prefix cache at the first admission; −1 before it.
        num_logprobs_done: prompt positions whose log-probabilities have arrived.
        prompt_logprobs: these, until they are sent.
        constraint: the constraint on its tokens (grammar or reasoning limit), if any.
        repetition: detects repetitions, if the request asks for it.
    """

    source: EngineRequest
    order: int
    cache: RequestCache
    token_ids: NDArray[np.int32]
    stop_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    max_len: int
    expected_len: int = 0
    status: Status = Status.WAITING
    num_steps_under_way: int = 0
    num_cached: int = -1
    num_logprobs_done: int = 1
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    times: RequestTimes = field(default_factory=RequestTimes)
    constraint: Constraint | None = None
    repetition: RepetitionDetector | None = None

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
    def min_len(self) -> int:
        """Number of tokens from which on an end or stop token ends the answer."""
        return self.num_prompt + self.source.params.min_tokens

    @property
    def may_run_dry(self) -> bool:
        """Whether its own parameters may mask all tokens; the sampler then reports a NaN row, as for a broken model."""
        params = self.source.params
        return self.constraint is not None or params.allowed_token_ids is not None or bool(params.bad_words)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt positions are still to come."""
        return self.source.params.prompt_logprobs is not None and self.num_logprobs_done < self.num_prompt

    def finish_reason_after(self, token_id: int, num_tokens: int) -> tuple[str | None, int | None]:
        """The finish reason if the last of ``num_tokens`` tokens ends the answer, and the stop token (None for EOS)."""
        if num_tokens >= self.min_len:
            if token_id in self.eos_token_ids:
                return "stop", None
            if token_id in self.stop_token_ids:
                return "stop", token_id
        if num_tokens >= self.max_len:
            return "length", None
        return None, None
