"""A request inside the engine."""

from dataclasses import dataclass, field
from enum import Enum

from octavo.cache import RequestCache
from octavo.records import EngineRequest, RequestTimes, TokenLogprobs


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """State of one sequence. The scheduler owns it; everything in it is known on the host.

    Attributes:
        source: the request as it came.
        order: its place in the order of arrival.
        cache: its share of the cache.
        token_ids: prompt and generated tokens.
        status: waiting, running or finished.
        slot: row in device state while running, else −1.
        num_computed: tokens in the cache, those of steps under way included.
        num_pending: sampled tokens of steps under way, not yet known here.
        num_steps_under_way: steps under way that this request is part of.
        num_cached: prompt tokens that the prefix cache served at the first admission; −1 before it.
        stop_token_ids: tokens that end the text.
        num_logprobs_done: prompt positions whose log-probabilities have arrived.
        prompt_logprobs: those, until they are sent.
    """

    source: EngineRequest
    order: int
    cache: RequestCache
    token_ids: list[int]
    stop_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    max_len: int
    status: Status = Status.WAITING
    slot: int = -1
    num_computed: int = 0
    num_pending: int = 0
    num_steps_under_way: int = 0
    num_cached: int = -1
    num_logprobs_done: int = 1
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    times: RequestTimes = field(default_factory=RequestTimes)

    @property
    def request_id(self) -> str:
        """The engine request's id."""
        return self.source.request_id

    @property
    def num_prompt(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.source.prompt_token_ids)

    @property
    def num_output(self) -> int:
        """Generated tokens that are known."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence, those under way included."""
        return len(self.token_ids) + self.num_pending

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt positions are still to come."""
        return self.source.params.prompt_logprobs is not None and self.num_logprobs_done < self.num_prompt

    def finish_reason_after(self, token_id: int) -> tuple[str | None, int | None]:
        """Whether the token just appended ends the text: finish reason and stop token (None for end of sequence)."""
        params = self.source.params
        if self.num_output >= params.min_tokens:
            if token_id in self.eos_token_ids:
                return "stop", None
            if token_id in self.stop_token_ids:
                return "stop", token_id
        if len(self.token_ids) >= self.max_len:
            return "length", None
        return None, None
