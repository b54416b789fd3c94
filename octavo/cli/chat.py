"""``octavo chat`` and ``octavo complete``: a conversation in the terminal, or texts that a model continues."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from octavo.cli.answer import TimedAnswer, show_answer, write_note
from octavo.cli.backend import ChatBackend, Sampling
from octavo.cli.choose import add_flags, given_sampling, make_backend
from octavo.cli.parser import Parser
from octavo.cli.session import MAX_TOKENS, ChatSession, SessionAction
from octavo.cli.talk import is_interactive, talk

_COMPLETION_TOKENS = 128


def run(arguments: Sequence[str]) -> int:
    """Converse until the user has had enough; returns the exit status."""
    parser = Parser(
        "octavo chat",
        "Talk with a model: MODEL is loaded here; without it, a running server answers. "
        f"Text piped in is answered once. An answer ends after {MAX_TOKENS} tokens unless --max-tokens is given.",
        "[MODEL]",
    )
    parser.add_argument("--system-prompt", default="", metavar="TEXT", help="system message of the conversation")
    namespace, backend, sampling = _parse(parser, arguments)
    chat = ChatLoop(
        backend,
        ChatSession(namespace.system_prompt, sampling),
        takes_commands=namespace.quick is None and is_interactive(),
    )
    return asyncio.run(
        talk(
            backend,
            quick=namespace.quick,
            with_stats=namespace.stats,
            respond=chat.respond,
            history_name="chat_history",
            hint="/help lists commands, /exit ends.",
        )
    )


def run_complete(arguments: Sequence[str]) -> int:
    """Continue texts until the user has had enough; returns the exit status."""
    parser = Parser(
        "octavo complete",
        "Let a model continue text: MODEL is loaded here; without it, a running server answers. "
        f"Text piped in is continued once. --max-tokens is {_COMPLETION_TOKENS} unless given.",
        "[MODEL]",
    )
    namespace, backend, given = _parse(parser, arguments)
    sampling = {"max_tokens": _COMPLETION_TOKENS, **given}

    async def respond(text: str) -> TimedAnswer:
        return await show_answer(backend.complete(text, sampling), sys.stdout)

    return asyncio.run(
        talk(
            backend,
            quick=namespace.quick,
            with_stats=namespace.stats,
            respond=respond,
            history_name="complete_history",
            hint="Enter continues the text, Ctrl-D ends.",
        )
    )


def _parse(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, ChatBackend, Sampling]:
    """The flags, the model that they choose, and the sampling parameters that were given."""
    add_flags(parser)
    namespace = parser.parse(arguments)
    backend, seed = make_backend(namespace)
    sampling = given_sampling(namespace)
    if seed is not None:
        sampling["seed"] = seed
    return namespace, backend, sampling


class ChatLoop:
    """Answers what the user types, commands included."""

    def __init__(self, backend: ChatBackend, session: ChatSession, *, takes_commands: bool) -> None:
        self._backend = backend
        self._session = session
        self._takes_commands = takes_commands

    async def respond(self, text: str) -> TimedAnswer | None:
        """Answer a message or carry out a command; None if that brought no answer.

        Raises:
            OctavoError: the command is wrong, or the request failed; the message is forgotten then.
            EOFError: the user wants to quit.
        """
        if self._takes_commands and ChatSession.is_command(text):
            note, action = self._session.command(text)
            if note:
                write_note(note)
            if action is SessionAction.QUIT:
                raise EOFError
            return await self._answer() if action is SessionAction.ANSWER else None
        self._session.ask(text)
        return await self._answer()

    async def _answer(self) -> TimedAnswer:
        sampling = self._session.request_sampling
        pieces = self._backend.chat(self._session.messages, sampling)
        try:
            answer = await show_answer(pieces, sys.stdout)
        except BaseException:
            self._session.take_back_question()
            raise
        answer.max_tokens = sampling["max_tokens"]
        if answer.is_cut and not self._takes_commands:
            write_note(f"The answer is {answer.cut()}; --max-tokens sets the limit.")
        if answer.text:
            self._session.answer(answer.text)
        else:
            self._session.take_back_question()
        return answer
