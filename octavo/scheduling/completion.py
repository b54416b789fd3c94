"""What a request becomes: turns the results of its row into outputs, and decides when it has ended."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.records import (
    NAN_TOKEN,
    EngineOutput,
    EngineRequest,
    PooledData,
    RequestTimes,
    RoutedExperts,
    RowLogprobs,
    TokenLogprobs,
)
from octavo.sampling.rules import TokenRule

NAN_ERROR = "The model's output was not a number; the request was ended, others go on."
NO_TOKEN_ERROR = (
    "No token is left that all of the request's limits allow (its grammar, allowed_token_ids, bad_words), "
    "or the model's output was not a number; the request was ended, others go on."
)


@dataclass(slots=True)
class RowResult:
    """A step's results for one row.

    Attributes:
        token_ids: new tokens, at least one; :data:`NAN_TOKEN` if one could not be drawn.
        num_tokens: the request's tokens including these.
        logprobs: log-probabilities, if the request asked for them.
        pooled: the result of a pooling request.
        routed: the experts of tokens not told of before, if they are captured.
    """

    token_ids: list[int]
    num_tokens: int
    logprobs: RowLogprobs | None = None
    pooled: PooledData | None = None
    routed: RoutedExperts | None = None


class Completion(ABC):
    """The answer to one request, as far as it is known.

    Attributes:
        source: the request as received.
        rules: rules for the answer's tokens.
        num_cached: prompt tokens served from the prefix cache at the first admission; −1 before it.
        num_logprobs_done: prompt positions whose log-probabilities have arrived.
        max_len: number of tokens at which the request ends at the latest.
    """

    min_new_tokens: int
    """Number of tokens that the context must have room for besides the prompt."""

    def __init__(self, source: EngineRequest, max_model_len: int, rules: Sequence[TokenRule] = ()) -> None:
        self.source = source
        self.rules = tuple(rules)
        self.times = RequestTimes()
        self.num_cached = -1
        self.num_logprobs_done = 1
        self.max_len = self._max_len(max_model_len)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """All tokens that may end the answer."""
        return frozenset()

    @property
    def min_len(self) -> int:
        """Number of tokens from which on an end or stop token ends the answer."""
        return 0

    @property
    def needs_host_check(self) -> bool:
        """Whether the host must look at each token, not only at those that may end the answer."""
        return True

    @property
    def is_bound(self) -> bool:
        """Whether a rule may forbid tokens."""
        return any(rule.is_binding for rule in self.rules)

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached blocks may stand for parts of the prompt."""
        return not self.source.params.skip_reading_prefix_cache

    @property
    def may_run_dry(self) -> bool:
        """Whether its own parameters may mask all tokens; the sampler then reports a NaN row, as for a broken model."""
        return False

    def note_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take in log-probabilities of the next prompt positions."""
        self.num_logprobs_done += len(logprobs)

    def take(self, result: RowResult, now: float) -> EngineOutput:
        """The output that follows from a row's results."""
        if result.token_ids[-1] == NAN_TOKEN:
            return self.failed(NO_TOKEN_ERROR if self.may_run_dry else NAN_ERROR)
        return self._take(result, now)

    def failed(self, error: str) -> EngineOutput:
        """The output of a request that ends with an error."""
        return EngineOutput(self.source.request_id, finish_reason="error", error=error, times=self.times)

    @abstractmethod
    def _take(self, result: RowResult, now: float) -> EngineOutput:
        """:meth:`take` for results that are numbers."""

    @abstractmethod
    def _max_len(self, max_model_len: int) -> int:
        """See ``max_len``."""


class Generation(Completion):
    """Generated text.

    Args:
        has_routed_experts: the experts of each token come with it.
    """

    min_new_tokens = 1

    def __init__(
        self,
        source: EngineRequest,
        max_model_len: int,
        rules: Sequence[TokenRule] = (),
        *,
        has_routed_experts: bool = False,
    ) -> None:
        super().__init__(source, max_model_len, rules)
        self._has_routed_experts = has_routed_experts
        params = source.params
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._eos_ids = frozenset(() if params.ignore_eos else source.eos_token_ids)
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._stop_ids | self._eos_ids

    @property
    def min_len(self) -> int:
        return len(self.source.prompt_token_ids) + self.source.params.min_tokens

    @property
    def needs_host_check(self) -> bool:
        return self.times.first_token == 0.0 or bool(self.rules) or self._has_routed_experts

    @property
    def reads_prefix_cache(self) -> bool:
        params = self.source.params
        lacks_logprobs = params.prompt_logprobs is not None and self.num_logprobs_done < len(
            self.source.prompt_token_ids
        )
        return not lacks_logprobs and super().reads_prefix_cache

    @property
    def may_run_dry(self) -> bool:
        params = self.source.params
        return self.is_bound or params.allowed_token_ids is not None or bool(params.bad_words)

    def note_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        super().note_prompt_logprobs(logprobs)
        self._prompt_logprobs += logprobs

    def _take(self, result: RowResult, now: float) -> EngineOutput:
        token_ids, reason, stop_token = self._cut_at_stop(result)
        for rule in self.rules:
            count = rule.accept(token_ids)
            if rule.error is not None:
                return self.failed(rule.error)
            if count < len(token_ids):
                token_ids, reason, stop_token = token_ids[:count], None, None
            reason = reason or rule.finish_reason
        output = EngineOutput(self.source.request_id, token_ids, finish_reason=reason, stop_reason=stop_token)
        output.routed = result.routed
        if result.logprobs is not None and result.logprobs.sampled:
            output.logprobs = result.logprobs.sampled[: len(token_ids)]
        self.times.last_token = now
        if self.times.first_token == 0.0:
            self.times.first_token = now
            output.num_cached_tokens = self.num_cached
            output.times = self.times
        if reason is not None:
            output.times = self.times
        if self._prompt_logprobs:
            output.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        return output

    def _cut_at_stop(self, result: RowResult) -> tuple[list[int], str | None, int | None]:
        """The tokens up to the first that ends the answer, the finish reason, and the stop token (None for EOS)."""
        token_ids = result.token_ids
        num_before = result.num_tokens - len(token_ids)
        for count, token_id in enumerate(token_ids, 1):
            num_tokens = num_before + count
            if num_tokens >= self.min_len:
                if token_id in self._eos_ids:
                    return token_ids[:count], "stop", None
                if token_id in self._stop_ids:
                    return token_ids[:count], "stop", token_id
            if num_tokens >= self.max_len:
                return token_ids[:count], "length", None
        return token_ids, None, None

    def _max_len(self, max_model_len: int) -> int:
        max_tokens = self.source.params.max_tokens
        num_prompt = len(self.source.prompt_token_ids)
        return max_model_len if max_tokens is None else min(max_model_len, num_prompt + max_tokens)


class Pooling(Completion):
    """The result of a pooling request: vectors or scores of its prompt."""

    min_new_tokens = 0

    def _take(self, result: RowResult, now: float) -> EngineOutput:
        return EngineOutput(
            self.source.request_id,
            finish_reason="stop",
            num_cached_tokens=self.num_cached,
            times=self.times,
            pooled=result.pooled,
        )

    def _max_len(self, max_model_len: int) -> int:
        return len(self.source.prompt_token_ids)


def make_completion(
    source: EngineRequest, max_model_len: int, rules: Sequence[TokenRule], *, has_routed_experts: bool = False
) -> Completion:
    """The completion that a request asks for.

    Args:
        has_routed_experts: see :class:`Generation`.
    """
    if source.pooling is not None:
        return Pooling(source, max_model_len, rules)
    return Generation(source, max_model_len, rules, has_routed_experts=has_routed_experts)
