"""Prints an answer while it is streamed; Ctrl-C interrupts it."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from octavo.cli.backend import AnswerPiece

# A model's text may hold escape sequences; a terminal would obey them.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class TimedAnswer:
    """An answer and how fast it came; times in seconds since it was requested.

    Attributes:
        max_tokens: the limit that was requested, None if there was none.
    """

    text: str = ""
    num_tokens: int = 0
    max_tokens: int | None = None
    finish_reason: str | None = None
    is_interrupted: bool = False
    first_token_time: float = 0.0
    end_time: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether it is shorter than the model would have made it."""
        return self.finish_reason == "length"

    def cut(self) -> str:
        """Where it was cut."""
        if self.max_tokens is not None and self.num_tokens >= self.max_tokens:
            return f"cut at max_tokens ({self.max_tokens})"
        return "cut at the length limit of the model's context"

    def speed(self) -> str:
        """A line for people: tokens, tokens per second after the first, time to the first."""
        parts = [f"{self.num_tokens} {'token' if self.num_tokens == 1 else 'tokens'}"]
        seconds = self.end_time - self.first_token_time
        if self.num_tokens > 1 and seconds > 0:
            parts.append(f"{(self.num_tokens - 1) / seconds:.1f} tok/s")
        if self.num_tokens:
            parts.append(f"first token after {self.first_token_time:.2f} s")
        if self.is_interrupted:
            parts.append("interrupted")
        elif self.is_cut:
            parts.append(self.cut())
        return ", ".join(parts)


async def show_answer(pieces: AsyncGenerator[AnswerPiece, None], out: TextIO) -> TimedAnswer:
    """Write an answer to ``out`` as it comes; Ctrl-C ends the answer, and what came of it is returned."""
    answer = TimedAnswer()
    task = asyncio.create_task(_collect(pieces, answer, out))
    with _interrupting(task):
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
    answer.is_interrupted = task.cancelled()
    if answer.text and not answer.text.endswith("\n"):
        out.write("\n")
    out.flush()
    if not task.cancelled():
        task.result()
    return answer


def write_note(text: str) -> None:
    """Print a message of the program itself on standard error; dim on a terminal."""
    is_terminal = sys.stderr.isatty()
    print(f"{_DIM}{text}{_PLAIN}" if is_terminal else text, file=sys.stderr, flush=True)


async def _collect(pieces: AsyncGenerator[AnswerPiece, None], answer: TimedAnswer, out: TextIO) -> None:
    start = time.perf_counter()
    is_terminal = out.isatty()
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                if not answer.num_tokens and piece.num_tokens:
                    answer.first_token_time = time.perf_counter() - start
                answer.text += piece.text
                answer.num_tokens = piece.num_tokens
                answer.finish_reason = piece.finish_reason or answer.finish_reason
                if piece.text:
                    out.write(piece.text.translate(_CONTROLS) if is_terminal else piece.text)
                    out.flush()
    finally:
        answer.end_time = time.perf_counter() - start


@contextmanager
def _interrupting(task: asyncio.Task[None]) -> Generator[None, None, None]:
    """Let Ctrl-C cancel a task instead of the program."""
    loop = asyncio.get_running_loop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may be asleep

    previous: Callable[[int, FrameType | None], object] | int | None = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
