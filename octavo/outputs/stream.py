"""Outputs on their way to a reader who may be slower than they come."""

import asyncio
from collections.abc import Callable

from octavo.records import CompletionOutput, RequestOutput

TextTaker = Callable[[int, int, str], bool]
"""Gets a completion's index, its next token and the text that it adds, and says whether it took them."""


class OutputStream:
    """Holds at most one output: what comes before the reader does is joined to it, so nobody falls behind for good.

    Args:
        is_delta: outputs say what is new, and add up; else each says everything, and the last one counts.
        take: is offered tokens of which there is nothing to say but their text, see :meth:`relay`.
    """

    __slots__ = ("_error", "_is_delta", "_output", "_reader", "_take")

    def __init__(self, *, is_delta: bool, take: TextTaker | None = None) -> None:
        self._is_delta = is_delta
        self._take = take
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Hand an output over; it belongs to the stream from now on."""
        if self._output is not None and self._is_delta:
            output = _joined(self._output, output)
        self._output = output
        self._wake_reader()

    def relay(self, index: int, token_id: int, text: str) -> bool:
        """Offer a token past the reader, who need not be woken for it; returns whether it was taken.

        It is offered only while the reader has done with all earlier outputs and waits for the next.
        """
        if self._take is None or self._reader is None or self._reader.done():
            return False
        try:
            return self._take(index, token_id, text)
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
        """
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output, self._output = self._output, None
        return output

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """One delta that says what both say; ``second``, with what ``first`` had to add."""
    completions = {completion.index: completion for completion in first.outputs}
    for completion in second.outputs:
        earlier = completions.get(completion.index)
        if earlier is not None:
            _prepend(earlier, completion)
        completions[completion.index] = completion
    second.outputs = list(completions.values())
    if second.prompt_logprobs is None:
        second.prompt_logprobs = first.prompt_logprobs
    return second


def _prepend(earlier: CompletionOutput, completion: CompletionOutput) -> None:
    completion.text = earlier.text + completion.text
    completion.token_ids = [*earlier.token_ids, *completion.token_ids]
    if earlier.logprobs is not None and completion.logprobs is not None:
        completion.logprobs = earlier.logprobs + completion.logprobs
