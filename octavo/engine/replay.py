"""Decides which requests a restarted engine gets, and when, so that a request that crashes engines fails alone."""

from collections import deque
from collections.abc import Iterable

from octavo.records import EngineRequest, StepOutputs

_SUSPICIOUS_DEATHS = 2
_MAX_DEATHS = 3
_TRIAL_TOKENS = 4


class Replays:
    """Counts the crashes at which each request was in the engine.

    After a first crash all requests are replayed together. Requests with two crashes are suspects: they are replayed
    one at a time, next to acquitted ones, each until it has produced a few tokens. So a request that causes crashes
    does not add to other suspects' counts, and after its fourth crash it is not replayed again.
    """

    def __init__(self) -> None:
        self._inside: set[str] = set()
        self._num_deaths: dict[str, int] = {}
        self._suspects: deque[EngineRequest] = deque()
        self._on_trial: str | None = None
        self._num_tokens_left = 0

    def enter(self, requests: Iterable[EngineRequest]) -> None:
        """Note requests that were sent to a running engine."""
        self._inside.update(request.request_id for request in requests)

    def resume(self, requests: list[EngineRequest]) -> tuple[list[EngineRequest], list[str]]:
        """Note that a new engine is ready.

        Returns:
            The requests to send now, and the ids of those to fail.
        """
        for request_id in self._inside:
            is_acquitted = self._num_deaths.get(request_id, 0) >= _SUSPICIOUS_DEATHS and request_id != self._on_trial
            if not is_acquitted:
                self._num_deaths[request_id] = self._num_deaths.get(request_id, 0) + 1
        now: list[EngineRequest] = []
        suspects: list[EngineRequest] = []
        guilty: list[str] = []
        for request in requests:
            num_deaths = self._num_deaths.get(request.request_id, 0)
            if num_deaths > _MAX_DEATHS:
                guilty.append(request.request_id)
            else:
                (suspects if num_deaths >= _SUSPICIOUS_DEATHS else now).append(request)
        suspects.sort(key=lambda request: self._num_deaths[request.request_id])
        self._suspects = deque(suspects)
        self._inside = {request.request_id for request in now}
        return now + self._next_trial(), guilty

    def note_outputs(self, outputs: StepOutputs) -> list[EngineRequest]:
        """Note outputs; returns the requests to send next, if a trial has ended."""
        if self._on_trial is None:
            return []
        for output in outputs:
            if output.request_id == self._on_trial:
                self._num_tokens_left -= len(output.new_token_ids)
                if self._num_tokens_left <= 0 or output.finish_reason is not None:
                    return self._next_trial()
        return []

    def forget(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        """Note ended requests; returns the requests to send next, if a trial has ended."""
        gone = set(request_ids)
        self._inside -= gone
        for request_id in gone:
            self._num_deaths.pop(request_id, None)
        if any(suspect.request_id in gone for suspect in self._suspects):
            self._suspects = deque(suspect for suspect in self._suspects if suspect.request_id not in gone)
        return self._next_trial() if self._on_trial in gone else []

    def _next_trial(self) -> list[EngineRequest]:
        self._on_trial = None
        if not self._suspects:
            return []
        request = self._suspects.popleft()
        self._on_trial, self._num_tokens_left = request.request_id, _TRIAL_TOKENS
        self._inside.add(request.request_id)
        return [request]
