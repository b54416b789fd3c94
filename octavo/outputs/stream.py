"""Buffers a request's outputs for a reader that may be slower than the engine."""

import asyncio
from collections.abc import Callable, Sequence

from octavo.errors import RequestFailedError
from octavo.records import CompletionOutput, RequestOutput

TextTaker = Callable[[int, int, str], bool]
"""Gets a completion's index, its next token and the text that it adds; returns whether it took them."""


MAX_BACKLOG = 1 << 17
"""Most that may wait for one reader: tokens and entries of log-probabilities, together. Some ten MiB at worst."""

_MAX_PIECES = 64


class OutputStream:
    """Joins what comes before the reader asks for it, so that a slow reader gets everything in fewer outputs.

    One that falls behind by more than :data:`MAX_BACKLOG` is given up: what it has not read is dropped.

    Args:
        is_delta: outputs say what is new, and add up; else each says everything, and the last one counts.
        take_text: is offered tokens whose only output is their text; see :meth:`relay`.
    """

    __slots__ = ("_backlog", "_error", "_is_delta", "_outputs", "_reader", "_take_text")

    def __init__(self, *, is_delta: bool, take_text: TextTaker | None = None) -> None:
        self._is_delta = is_delta
        self._take_text = take_text
        self._outputs: list[RequestOutput] = []
        self._backlog = 0
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> bool:
        """Hand an output over; it belongs to the stream from now on. Returns whether the reader is still in reach."""
        if self._error is not None:
            return False
        if not self._is_delta:
            self._outputs = [output]
        else:
            self._outputs.append(output)
            self._backlog += _size(output)
            if self._backlog > MAX_BACKLOG:
                self._outputs = []
                self.fail(RequestFailedError("The response was aborted because the client read it too slowly."))
                return False
            if len(self._outputs) > _MAX_PIECES:
                self._outputs = [_joined(self._outputs)]
        self._wake_reader()
        return True

    def relay(self, index: int, token_id: int, text: str) -> bool:
        """Offer a token past the reader, who need not be woken for it; returns whether it was taken.

        It is offered only while the reader has done with all earlier outputs and waits for the next.
        """
        if self._take_text is None or self._reader is None or self._reader.done():
            return False
        try:
            return self._take_text(index, token_id, text)
        except Exception as error:
            self.fail(error)
            return True

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after the outputs that are in it."""
        self._error = self._error or error
        self._wake_reader()

    async def get(self) -> RequestOutput:
        """The next output, once there is one.

        Raises:
            Exception: what :meth:`fail` was given.
            RequestFailedError: the reader was too slow.
        """
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        outputs, self._outputs, self._backlog = self._outputs, [], 0
        return outputs[0] if len(outputs) == 1 else _joined(outputs)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(output: RequestOutput) -> int:
    return sum(
        [
            len(completion.token_ids) + (sum(map(len, completion.logprobs)) if completion.logprobs else 0)
            for completion in output.outputs
        ]
    )


def _joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """One delta that says what all say: the last one, with what the others had to add."""
    pieces: dict[int, list[CompletionOutput]] = {}
    for output in outputs:
        for completion in output.outputs:
            pieces.setdefault(completion.index, []).append(completion)
    last = outputs[-1]
    last.outputs = [_joined_completion(parts) for parts in pieces.values()]
    last.prompt_logprobs = next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None)
    return last


def _joined_completion(parts: Sequence[CompletionOutput]) -> CompletionOutput:
    last = parts[-1]
    if len(parts) > 1:
        last.text = "".join([part.text for part in parts])
        last.token_ids = [token_id for part in parts for token_id in part.token_ids]
        if last.logprobs is not None:
            joined = last.logprobs[:0]
            joined.extend(entry for part in parts for entry in part.logprobs or ())
            last.logprobs = joined
    return last
