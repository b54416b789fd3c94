"""The input loop of ``chat`` and ``complete``: one quick text, piped input, or interactive input."""

import sys
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from octavo.cli.answer import TimedAnswer, write_note
from octavo.cli.backend import ChatBackend
from octavo.errors import ConfigError, OctavoError

INTERRUPTED = 130


class LineReader(Protocol):
    """Reads one entry after another."""

    async def read(self) -> str:
        """What the user typed.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C; the line is given up.
        """


def is_interactive() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def talk(
    backend: ChatBackend,
    *,
    quick: str | None,
    with_stats: bool,
    respond: Callable[[str], Awaitable[TimedAnswer | None]],
    history_name: str,
    hint: str,
) -> int:
    """Start the model and answer: ``quick``, piped text, or what a person types; returns the exit status.

    Args:
        with_stats: show speed outside of a terminal session too.
        respond: deals with one text; None if that brought no answer.
        history_name: file for what was typed.
        hint: printed at the beginning of a session.

    Raises:
        OctavoError: the model cannot be started, or answering the one text failed.
        EOFError: from ``respond``, to end the session.
    """
    is_session = quick is None and is_interactive()
    if quick is None and not is_session:
        quick = sys.stdin.read()
    if quick is not None and not quick.strip():
        raise ConfigError("There is nothing to answer: the text is empty.")
    start = time.perf_counter()
    try:
        await backend.start()
        if quick is not None:
            return _report(await respond(quick), with_stats)
        seconds = time.perf_counter() - start
        write_note(f"{backend.model_name}, ready after {seconds:.1f} s. {hint}")
        # The line editor takes 0.1 s to import and is only needed on a terminal.
        from octavo.cli.prompt import TerminalReader

        return await _session(TerminalReader(history_name), respond)
    finally:
        await backend.close()


def _report(answer: TimedAnswer | None, with_stats: bool) -> int:
    if answer is not None and with_stats:
        write_note(answer.speed())
    return INTERRUPTED if answer is not None and answer.is_interrupted else 0


async def _session(reader: LineReader, respond: Callable[[str], Awaitable[TimedAnswer | None]]) -> int:
    while True:
        try:
            text = await reader.read()
            if not text.strip():
                continue
            answer = await respond(text)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            write_note("Ctrl-D or /quit ends the program.")
        except OctavoError as error:
            write_note(str(error))
        else:
            if answer is not None:
                write_note(answer.speed())
