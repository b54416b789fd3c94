"""Converts engine outputs to pooling outputs."""

from collections.abc import Callable, Sequence

import numpy as np

from octavo.outputs.processor import error_of
from octavo.records import (
    EngineOutput,
    EngineRequest,
    PoolingOutput,
    PoolingRequestOutput,
    PreparedRequest,
    StepOutputs,
)

Pooled = PoolingRequestOutput[PoolingOutput]
_NOTHING = np.empty(0, np.float32)


class PoolingOutputs:
    """Keeps the pooling requests in flight of one frontend."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[PreparedRequest, Callable[[Pooled], None]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def request_ids(self) -> list[str]:
        """Requests in flight."""
        return list(self._requests)

    def has(self, request_id: str) -> bool:
        """Whether a request is in flight."""
        return request_id in self._requests

    def add_request(self, prepared: PreparedRequest, on_done: Callable[[Pooled], None]) -> None:
        """Expect the answer of a request; ``on_done`` gets it, also if it is an error."""
        assert prepared.request_id not in self._requests, "request ids in flight are unique"
        self._requests[prepared.request_id] = (prepared, on_done)

    def process(self, outputs: StepOutputs) -> None:
        """Take in what a step brought; what belongs to other requests is passed over."""
        if not self._requests:
            return
        for output in outputs.others:
            known = self._requests.pop(output.request_id, None)
            if known is not None:
                prepared, on_done = known
                on_done(_answer(prepared, output))

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """Forget requests; returns those that were in flight."""
        return [request_id for request_id in request_ids if self._requests.pop(request_id, None) is not None]

    def replays(self) -> list[EngineRequest]:
        """The unfinished requests, to be sent to a new engine."""
        return [prepared.children[0] for prepared, _ in self._requests.values()]


def checked(output: Pooled) -> Pooled:
    """The output, if it is one.

    Raises:
        InvalidRequestError: the engine refused the request.
        RequestFailedError: the request failed in the engine.
    """
    if (error := error_of(output)) is not None:
        raise error
    return output


def _answer(prepared: PreparedRequest, output: EngineOutput) -> Pooled:
    error = output.error
    if output.pooled is None and error is None:
        error = "The request was aborted."
    return PoolingRequestOutput(
        request_id=prepared.request_id,
        outputs=PoolingOutput(_NOTHING if output.pooled is None else output.pooled.array()),
        prompt_token_ids=prepared.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens or 0,
        finished=True,
        error=error,
        is_refused=output.is_refused,
    )
