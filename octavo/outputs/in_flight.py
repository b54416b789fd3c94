"""The requests of a frontend that are in the engine, and those to replay when the engine is restarted."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from octavo.engine.replay import Replays
from octavo.errors import InvalidRequestError, OctavoError
from octavo.outputs.pooling import Pooled, PoolingOutputs
from octavo.outputs.processor import OutputProcessor
from octavo.outputs.stream import OutputStream
from octavo.records import EngineOutput, EngineRequest, PreparedRequest, RequestOutput, StepOutputs
from octavo.tokenization import Tokenizer


class RequestsInFlight:
    """Generating and pooling requests of one frontend, each with its stream or future.

    Attributes:
        replays: which of them a new engine gets, and when.
    """

    def __init__(self) -> None:
        self.replays = Replays()
        self._outputs = OutputProcessor(None)
        self._streams: dict[str, OutputStream] = {}
        self._pooling = PoolingOutputs()
        self._vectors: set[asyncio.Future[Pooled]] = set()

    def __len__(self) -> int:
        return len(self._streams) + len(self._pooling)

    @property
    def has_unfinished(self) -> bool:
        """Whether the engine still works for this frontend; streams may be read for longer."""
        return bool(self._outputs.num_unfinished or len(self._pooling))

    def set_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        """Take the tokenizer that turns tokens into text; there are no requests yet."""
        self._outputs = OutputProcessor(tokenizer, has_late_logprobs=True)

    def check_free(self, request_ids: Iterable[str]) -> None:
        """Check that request ids are new.

        Raises:
            InvalidRequestError: one of them is in flight.
        """
        for name in request_ids:
            if self._outputs.has(name) or self._pooling.has(name):
                raise InvalidRequestError(f"The request id {name!r} is already in use.", "request_id")

    def add_stream(self, prepared: PreparedRequest, stream: OutputStream, *, has_relay: bool) -> None:
        """Expect the outputs of a generating request, for ``stream``.

        Args:
            has_relay: whether the stream may take tokens whose only output is their text.
        """
        self._outputs.add_request(prepared, stream.relay if has_relay else None)
        self._streams[prepared.request_id] = stream

    def remove_stream(self, request_id: str) -> None:
        """The request's outputs are no longer read."""
        self._streams.pop(request_id, None)

    def add_vectors(self, prepared: Sequence[PreparedRequest], futures: Sequence["asyncio.Future[Pooled]"]) -> None:
        """Expect the vectors of pooling requests."""
        self._vectors.update(futures)
        for request, future in zip(prepared, futures, strict=True):
            self._pooling.add_request(request, partial(_settle, future))

    def remove_vectors(self, request_ids: Sequence[str], futures: Sequence["asyncio.Future[Pooled]"]) -> list[str]:
        """Forget pooling requests whose caller has left; returns the unfinished ones."""
        self._vectors.difference_update(futures)
        for future in futures:
            # One error ends the request; the same of others is not to be reported as forgotten.
            if future.done() and not future.cancelled():
                future.exception()
        return self._pooling.abort(request_ids)

    def abort(self, request_id: str) -> list[str]:
        """Forget a generating request; returns the ids of its sequences that the engine works on."""
        return self._outputs.abort(request_id)

    def end_early(self, request_id: str) -> bool:
        """End a request with its output so far and the finish reason ``abort``; False if it is not in flight."""
        last: RequestOutput | None = self._outputs.abort_output(request_id)
        if last is None:
            return False
        self._streams[request_id].put(last)
        return True

    def fail_all(self, error: OctavoError) -> None:
        """End all requests with an error."""
        for stream in self._streams.values():
            stream.fail(error)
        fail_futures(self._vectors, error)

    def resume(self) -> tuple[list[EngineRequest], StepOutputs]:
        """Collect the requests for a restarted engine.

        Returns:
            The requests to send now, and the failures of those that are not to be tried again.
        """
        requests, guilty = self.replays.resume(self._outputs.replays() + self._pooling.replays())
        error = "The engine crashed each time it processed this request."
        failures = [EngineOutput(request_id, finish_reason="error", error=error) for request_id in guilty]
        return requests, StepOutputs(others=failures)

    def process(self, outputs: StepOutputs) -> tuple[list[str], list[str]]:
        """Deliver a step's outputs.

        Returns:
            The sequences that a stop string ended on this side, and the requests whose readers are too slow.
        """
        self._pooling.process(outputs)
        processed = self._outputs.process(outputs)
        overrun = []
        for output in processed.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and not stream.put(output):
                overrun.append(output.request_id)
        return processed.aborts, overrun


def fail_futures(futures: Iterable["asyncio.Future[Pooled]"], error: Exception) -> None:
    """End those that are not over yet with an error."""
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _settle(future: "asyncio.Future[Pooled]", output: Pooled) -> None:
    """Set a future's result unless it is done."""
    if not future.done():
        future.set_result(output)
