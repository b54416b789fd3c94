"""Converts engine outputs to :class:`RequestOutput`: text, stop strings, log-probabilities, ``n`` completions."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from octavo.errors import InvalidRequestError, OctavoError, RequestFailedError
from octavo.outputs.completion import CompletionState
from octavo.outputs.logprobs import LatePromptLogprobs
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    EngineOutput,
    EngineRequest,
    FlatLogprobs,
    PoolingOutput,
    PoolingRequestOutput,
    PreparedRequest,
    PromptLogprobs,
    RequestOutput,
    RequestOutputKind,
    RequestStateStats,
    RequestTimes,
    StepOutputs,
    TokenLogprobs,
)
from octavo.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessedOutputs:
    """What one batch of engine outputs came to.

    Attributes:
        outputs: for users, in order.
        aborts: engine requests that a stop string ended; the engine does not know yet.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)


def error_of(output: RequestOutput | PoolingRequestOutput[PoolingOutput]) -> OctavoError | None:
    """What to raise for an output, None if nothing went wrong."""
    if output.error is None:
        return None
    return InvalidRequestError(output.error) if output.is_refused else RequestFailedError(output.error)


class OutputProcessor:
    """Keeps the requests in flight of one frontend and turns engine outputs into :class:`RequestOutput`.

    Args:
        tokenizer: None if outputs are to have no text.
        has_late_logprobs: create a prompt's log-probabilities lazily, when they are read: there may be
            millions, which would delay the outputs of all requests.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, has_late_logprobs: bool = False) -> None:
        self._tokenizer = tokenizer
        self._has_late_logprobs = has_late_logprobs
        self._requests: dict[str, _RequestState] = {}
        self._completions: dict[str, tuple[_RequestState, CompletionState]] = {}
        # What takes a token, where that can be all that is to do with it; it returns whether there is more.
        self._quick: dict[str, Callable[[int], bool | None]] = {}

    @property
    def num_unfinished(self) -> int:
        """Requests in flight, each counted once whatever its ``n``."""
        return len(self._requests)

    @property
    def request_ids(self) -> list[str]:
        """Requests in flight."""
        return list(self._requests)

    def has(self, request_id: str) -> bool:
        """Whether a request is in flight."""
        return request_id in self._requests

    def add_request(self, prepared: PreparedRequest, take_text: TextTaker | None = None) -> None:
        """Expect outputs for a request; its id must not be in flight.

        Args:
            take_text: for streams of deltas, is offered tokens whose only output is their text; those that it takes
                are in no output.
        """
        assert prepared.request_id not in self._requests, "request ids in flight are unique"
        # Without text, the tokens of log-probabilities have no text either.
        tokenizer = self._tokenizer if prepared.params.detokenize else None
        request = _RequestState(prepared, tokenizer, has_late_logprobs=self._has_late_logprobs)
        self._requests[prepared.request_id] = request
        for completion in request.completions:
            engine_id = completion.request.request_id
            self._completions[engine_id] = (request, completion)
            if completion.text_is_late:
                self._quick[engine_id] = completion.token_ids.append
            elif take_text is not None and completion.is_only_text:
                self._quick[engine_id] = partial(completion.relay, take_text)

    def process(self, outputs: StepOutputs) -> ProcessedOutputs:
        """Take in what a step brought. Outputs of requests that are gone are passed over.

        A request whose output cannot be made ends with an error; the others continue.
        """
        processed = ProcessedOutputs()
        changed: dict[str, _RequestState] = {}
        if outputs.num_tokens or outputs.logprobs:
            for request_id, token_ids, logprobs in outputs.rows():
                self._take_tokens(request_id, token_ids, logprobs, processed, changed)
        else:
            self._take_one_each(outputs, processed, changed)
        for output in outputs.others:
            known = self._completions.get(output.request_id)
            if known is None:
                continue
            request, completion = known
            try:
                request.add_output(output, completion)
                if completion.is_finished:
                    self._end(request, completion)
                    if output.finish_reason is None:
                        processed.aborts.append(output.request_id)
                _show(request, completion, processed, changed)
            except Exception:
                self._break_off(request, processed, changed)
        for request in changed.values():
            if request.is_finished or request.kind is RequestOutputKind.CUMULATIVE:
                processed.outputs.append(request.snapshot())
        return processed

    def _take_one_each(
        self, outputs: StepOutputs, processed: ProcessedOutputs, changed: dict[str, "_RequestState"]
    ) -> None:
        """Add one token to each request."""
        find, find_quick = self._completions.get, self._quick.get
        for request_id, token_id in zip(outputs.request_ids, outputs.token_ids, strict=True):
            known = None
            try:
                relay = find_quick(request_id)
                if relay is not None and not relay(token_id):
                    continue
                known = find(request_id)
                if known is None:
                    continue
                if relay is None:
                    known[1].take_tokens((token_id,))
                self._show(*known, processed, changed)
            except Exception:
                self._break_off((known or self._completions[request_id])[0], processed, changed)

    def _take_tokens(
        self,
        request_id: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
        processed: ProcessedOutputs,
        changed: dict[str, "_RequestState"],
    ) -> None:
        """Add tokens that do not end their request; those of a request that is gone are passed over."""
        known = self._completions.get(request_id)
        if known is None:
            return
        try:
            known[1].take_tokens(token_ids, logprobs)
            self._show(*known, processed, changed)
        except Exception:
            self._break_off(known[0], processed, changed)

    def _show(
        self,
        request: "_RequestState",
        completion: CompletionState,
        processed: ProcessedOutputs,
        changed: dict[str, "_RequestState"],
    ) -> None:
        """Pass on what is new of a completion that tokens were added to."""
        if completion.is_finished:
            self._end(request, completion)
            processed.aborts.append(completion.request.request_id)
        _show(request, completion, processed, changed)

    def _break_off(
        self, request: "_RequestState", processed: ProcessedOutputs, changed: dict[str, "_RequestState"]
    ) -> None:
        """End a request, in an ``except`` clause, because of a fault here."""
        logger.exception("an output could not be made")
        changed.pop(request.request_id, None)
        processed.aborts += self.abort(request.request_id)
        processed.outputs.append(request.broken_off())

    def abort(self, request_id: str) -> list[str]:
        """Forget a request and return the ids that the engine is to abort; none if it is not in flight."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        return [completion.request.request_id for completion in request.completions if self._forget(completion)]

    def abort_output(self, request_id: str) -> RequestOutput | None:
        """The last output of a request about to be aborted, its completions ended with ``abort``.

        Call :meth:`abort` afterwards. None if the request is not in flight.
        """
        request = self._requests.get(request_id)
        return None if request is None else request.aborted()

    def replays(self) -> list[EngineRequest]:
        """What to send to a new engine so that every unfinished completion continues where it was."""
        return [request.replay(completion) for request, completion in self._completions.values()]

    def _forget(self, completion: CompletionState) -> bool:
        """Expect nothing more for a completion; returns whether anything was expected."""
        engine_id = completion.request.request_id
        self._quick.pop(engine_id, None)
        return self._completions.pop(engine_id, None) is not None

    def _end(self, request: "_RequestState", completion: CompletionState) -> None:
        """Forget a finished completion, and its request with the last one."""
        self._forget(completion)
        request.num_running -= 1
        if request.is_finished:
            del self._requests[request.request_id]


class _RequestState:
    """A user's request in flight: its completions, and what belongs to the prompt."""

    __slots__ = (
        "_cached_tokens",
        "_error",
        "_has_late_logprobs",
        "_is_refused",
        "_metrics",
        "_prepared",
        "_prompt_logprobs",
        "_prompt_rows",
        "_tokenizer",
        "completions",
        "kind",
        "num_running",
        "request_id",
    )

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer | None, *, has_late_logprobs: bool) -> None:
        self.request_id = prepared.request_id
        self.kind = prepared.params.output_kind
        self.completions = [CompletionState(index, child, tokenizer) for index, child in enumerate(prepared.children)]
        self.num_running = len(self.completions)
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._has_late_logprobs = has_late_logprobs
        has_one_token = prepared.params.prompt_logprobs is not None and len(prepared.prompt_token_ids) == 1
        # The first token has no log-probability; a prompt of one token is complete without the engine's help.
        self._prompt_logprobs: PromptLogprobs | None = [None] if has_one_token else None
        self._prompt_rows: list[TokenLogprobs] = []
        self._cached_tokens: int | None = None
        self._error: str | None = None
        self._is_refused = False
        self._metrics = RequestStateStats(arrival_time=prepared.arrival_time)

    @property
    def is_finished(self) -> bool:
        return self.num_running == 0

    @property
    def leader_id(self) -> str | None:
        """The completion that shares its prompt's blocks with the others, while it runs."""
        leader = self.completions[0]
        return None if leader.is_finished else leader.request.request_id

    def add_output(self, output: EngineOutput, completion: CompletionState) -> None:
        completion.add_output(output)
        if self._cached_tokens is None:
            self._cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self._take_prompt_logprobs(output, completion)
        if output.times is not None:
            self._take_times(output.times)
        if output.error is not None:
            self._error = output.error
            self._is_refused = output.is_refused

    def _take_prompt_logprobs(self, output: EngineOutput, completion: CompletionState) -> None:
        if completion.has_prompt_logprobs:
            return
        self._prompt_rows += output.prompt_logprobs or []
        if len(self._prompt_rows) < len(self._prepared.prompt_token_ids) - 1:
            return
        completion.has_prompt_logprobs = True
        if self._prompt_logprobs is None:
            late = LatePromptLogprobs(self._prompt_rows, self._tokenizer)
            if self._prepared.params.flat_logprobs:
                self._prompt_logprobs = FlatLogprobs.of(late)
            else:
                self._prompt_logprobs = late if self._has_late_logprobs else list(late)
        self._prompt_rows = []

    def replay(self, completion: CompletionState) -> EngineRequest:
        """The request with which a new engine continues a completion; partial prompt log-probabilities are dropped."""
        if not completion.has_prompt_logprobs:
            self._prompt_rows = []
        return completion.replay(self.leader_id)

    def _take_times(self, times: RequestTimes) -> None:
        metrics = self._metrics
        # A request that was replayed keeps the times of its first life.
        metrics.queued_ts = metrics.queued_ts or times.queued
        metrics.scheduled_ts = metrics.scheduled_ts or times.scheduled
        if not metrics.first_token_ts and times.first_token:
            metrics.first_token_ts = times.first_token
            metrics.first_token_latency = times.first_token - metrics.arrival_time
        metrics.last_token_ts = times.last_token or metrics.last_token_ts
        metrics.num_preemptions = max(metrics.num_preemptions, times.num_preemptions)

    def delta(self, completion: CompletionState) -> RequestOutput:
        """One completion's new output; prompt log-probabilities are included once."""
        delta = completion.delta()
        self._metrics.num_generation_tokens += len(delta.token_ids)
        if self.is_finished:
            self._count_tokens()  # those that were taken past the outputs as well
        output = self._output([delta], self.is_finished)
        self._prompt_logprobs = None
        return output

    def snapshot(self) -> RequestOutput:
        """All completions that have begun, as they are."""
        begun = [completion.snapshot() for completion in self.completions if completion.has_begun]
        self._count_tokens()
        return self._output(begun, self.is_finished)

    def aborted(self) -> RequestOutput:
        """The last output, with the completions that were running as far as they came."""
        running = [completion for completion in self.completions if not completion.is_finished]
        for completion in running:
            completion.end("abort")
        self.num_running = 0
        self._count_tokens()
        if self.kind is RequestOutputKind.DELTA:
            return self._output([completion.delta() for completion in running], True)
        return self._output([completion.snapshot() for completion in self.completions], True)

    def broken_off(self) -> RequestOutput:
        """The last output, if no other can be made."""
        self._error = "The output could not be built because of an internal error."
        return self._output([], True)

    def _count_tokens(self) -> None:
        self._metrics.num_generation_tokens = sum([len(completion.token_ids) for completion in self.completions])

    def _output(self, outputs: list[CompletionOutput], finished: bool) -> RequestOutput:
        prepared = self._prepared
        return RequestOutput(
            prepared.request_id,
            prepared.prompt_text,
            prepared.prompt_token_ids,
            self._prompt_logprobs,
            outputs,
            finished,
            self._metrics,
            num_cached_tokens=self._cached_tokens,
            error=self._error,
            is_refused=self._is_refused,
        )


def _show(
    request: _RequestState, completion: CompletionState, processed: ProcessedOutputs, changed: dict[str, _RequestState]
) -> None:
    """Emit a completion's new output: at once as a delta, or together with the request's other completions."""
    if not completion.has_unsent:
        return
    if request.kind is RequestOutputKind.DELTA:
        processed.outputs.append(request.delta(completion))
    else:
        changed[request.request_id] = request
